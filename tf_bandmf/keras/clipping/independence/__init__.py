"""Independence of examples, shown by structure (invariant 16).

The contribution of an example to the sum may depend only on that example, the weights
and the step's random numbers. Before the training step is traced,

* the model is called on symbolic tensors (`walk`), and the axis of the examples is followed
  through Keras' operations by a table (`operations`), and through layers that are known
  (`layers`) or whose classes the user vouches for (`registration`);
* layers for which that fails are executed for each example by itself (`rules.per_example`,
  `map_examples`), where no other example can be seen: in a loop, or vectorized if each
  operation is known to be converted correctly. Losses are executed in the same way, except
  for a closed list of losses whose row i depends on example i alone (`losses.rows`);
* all other models are refused.

The graph that is traced afterwards changes no variables (`state`), and a function that runs
on one example alone cannot read the rest of the batch.
"""
