"""Short changes to Keras and TensorFlow while a step is traced."""
