"""The one door to the insides of Keras and TensorFlow.

Nothing else in `tf_bandmf.keras` imports `keras.src` or `tensorflow.python`, names a
private attribute of theirs, or replaces one of their functions; a test reads the syntax
trees of all files for that. Each file says what it is for and what tells that it broke.

    patching.py        how a function is replaced for a while, in one thread
    keras_objects.py   private attributes and modules of Keras
    graphs.py          private modules of TensorFlow
    seeds.py           what layers draw from Keras' seed generators
    fixed_draws.py     random functions that draw constants, for the self-check
    keras_operations.py  operations, and functions through which symbolic tensors pass
    vectorizing.py     `tf.vectorized_map` under XLA, and with products that are right
    optimizing.py      how often TensorFlow optimizes a step's graph
    replicas.py        what Keras divides and adds up over replicas
    recurrent.py       recurrent layers without cuDNN
"""
