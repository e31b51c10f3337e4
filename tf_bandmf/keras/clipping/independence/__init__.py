"""Proof, from the model's structure, that examples are independent.

This is invariant 16 of `docs/guarantee.md`.

The contribution of an example to the sum may depend only on that example, the weights
and the step's random numbers. Before the training step is traced,

* the model is called on symbolic tensors (`walk`). A table of Keras operations
  (`operations`) tells where each operation puts the axis of examples; known layers
  (`layers`), and layer classes for which the user vouches (`registration`), are
  trusted;
* layers that mix examples, or cannot be analyzed, are executed on one example at a time
  (`rules.per_example`, `map_examples`), without access to other examples: in a loop, or
  vectorized if TensorFlow is known to vectorize each operation correctly. Losses are
  executed in the same way, except for a fixed list of losses whose row i depends only
  on example i (`losses.rows`);
* the model is refused if code outside of its layers mixes examples, or if the gradients
  of a layer cannot be computed for each example.

The training step that is traced afterwards changes no variables (`state`), and a
function that runs on one example cannot read the rest of the batch.
"""
