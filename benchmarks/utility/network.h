/* What the networks in C share: the loss and the clipping. */

#ifndef NETWORK_H
#define NETWORK_H

#include <math.h>

#define CLASSES 10

/* The cross-entropy's derivatives to the logits. */
static inline void residuals(const float *logits, int label, float *d) {
  float largest = logits[0], total = 0.0f;
  for (int c = 1; c < CLASSES; c++) largest = fmaxf(largest, logits[c]);
  for (int c = 0; c < CLASSES; c++) total += d[c] = expf(logits[c] - largest);
  for (int c = 0; c < CLASSES; c++) d[c] = d[c] / total - (c == label);
}

/* clip / (norm + gamma), or if gamma is 0, min(1, clip / norm). */
static inline float clip_factor(const float *g, int size, float clip, float gamma) {
  float squares = 0.0f;
  for (int i = 0; i < size; i++) squares += g[i] * g[i];
  float norm = sqrtf(squares);
  return gamma > 0.0f ? clip / (norm + gamma) : fminf(1.0f, clip / norm);
}

#endif
