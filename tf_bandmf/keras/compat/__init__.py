"""All uses of the private interfaces of Keras and TensorFlow.

Nothing else in `tf_bandmf.keras` imports `keras.src` or `tensorflow.python`, uses their
private attributes, or replaces one of their functions; a test checks this in the syntax
trees of all files. Each file states its purpose, and the tests that fail if it breaks.

    patching.py        replaces a function temporarily, in one thread
    keras_objects.py   private attributes and modules of Keras
    graphs.py          private modules of TensorFlow
    seeds.py           records and replays the draws of Keras' seed generators
    fixed_draws.py     random functions that draw constants, for the self-check
    keras_operations.py  functions to intercept in calls on symbolic tensors
    vectorizing.py     `tf.vectorized_map` under XLA, and with correct matrix products
    optimizing.py      how often TensorFlow optimizes a step's graph
    replicas.py        keeps losses undivided, and gradients of replicas unsummed
    recurrent.py       recurrent layers without cuDNN
"""
