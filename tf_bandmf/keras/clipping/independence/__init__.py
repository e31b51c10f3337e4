"""Independence of examples, shown by structure (invariant 16).

What an example adds to the sum may depend on that example, the weights and the step's
random numbers. Before the training step is traced,

* the model is called on symbolic tensors (`walk`), and the axis of the examples is followed
  through Keras' operations by a table (`operations`) and layers that are known (`layers`),
  whose classes the user may vouch for (`registration`);
* what that cannot show is executed for each example by itself (`rules.per_example`,
  `map_examples`), where no other example is there to be seen: in a loop, or vectorized
  where each operation is known to be converted well; so are losses, but
  for those of a closed list, whose rows are those of the examples (`losses.rows`);
* what remains is refused.

The graph that is traced afterwards changes no variables (`state`), and what runs alone
reads nothing of the batch.
"""
