"""A fixture that resumes runs from their files, as in a new process."""

import keras
import pytest
from small_models import data

from tf_bandmf.keras.run import admission


@pytest.fixture
def train_from_files(tmp_path):
    """Returns a function that trains a new model from saved files up to an epoch."""

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
