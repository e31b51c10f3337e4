"""Proof, from the model's structure, that examples are independent (invariant 16).

The contribution of an example to the sum may depend only on that example, the weights
and the step's random numbers. Before the training step is traced,

* the model is called on symbolic tensors (`walk`). A table (`operations`) follows the
  axis of the examples through Keras operations; known layers (`layers`), and layer
  classes for which the user vouches (`registration`), are trusted as a whole;
* layers for which this fails are executed on each example alone (`rules.per_example`,
  `map_examples`), without access to other examples: in a loop, or vectorized if each
  operation is known to be converted correctly. Losses are executed in the same way,
  except for a closed list of losses whose row i depends on example i alone
  (`losses.rows`);
* all other models are refused.

The graph that is traced afterwards changes no variables (`state`), and a function that runs
on one example alone cannot read the rest of the batch.
"""
