"""Independence of examples, shown by structure (invariant 16).

What an example adds to the sum may depend on that example, the weights and the step's
random numbers. Every trace of the training step is analysed before it runs:

* layers, Keras' own like all others, a model's own `call` and `keras.ops` are followed
  operation by operation (`evaluation` and the tables beside it), whatever their class
  says; but for classes that the user vouches for (`registration`);
* what that cannot show is executed for each example by itself (`rules.alone`), where no
  other example is there to be seen: in a loop, or vectorized where the same analysis
  shows of the vectorized graph that rows stay apart (`vectorized`); so are losses, but
  for those of a closed list, whose rows are those of the examples (`row_losses`);
* what remains is refused.
"""
