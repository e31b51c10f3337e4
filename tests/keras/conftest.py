"""Fixtures that isolate Keras tests from one another, and fixtures that resume runs."""

import keras
import pytest
from small_models import data

from tf_bandmf.keras.run import admission

# Seeds the weights of layers that test files create at import time.
keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def as_if_alone():
    """Clears the record of earlier runs on the shared data, and fixes the seed.

    Without a fixed seed, the input of a ReLU could be so close to 0 that rounding
    errors decide its gradient.
    """
    admission.forget()
    keras.utils.set_random_seed(0)


@pytest.fixture
def train_from_files(tmp_path):
    """Returns a function that trains a model, or resumes its run if files exist."""

    def train(model, name, epochs):
        admission.forget()
        model.build((None, data[0].shape[1]))
        backup = keras.callbacks.BackupAndRestore(
            tmp_path / f"{name}-backup", delete_checkpoint=False
        )
        model.fit(
            model.optimizer.plan.batches(*data),
            epochs=epochs,
            private_state=tmp_path / f"{name}.private",
            callbacks=[backup],
            verbose=0,
        )
        return model

    return train
