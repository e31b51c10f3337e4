"""The base of `PrivateOptimizer`: what Keras asks of it besides private steps.

Every path on which unclipped gradients could come in is refused; the inner optimizer
answers the rest.
"""

from __future__ import annotations

from typing import Any, NoReturn

import keras

from tf_bandmf.keras.run.run import HOW_TO_TRAIN, Run


class WrappedOptimizer(keras.optimizers.Optimizer):
    """Base of `PrivateOptimizer`.

    Args:
      inner_optimizer: an optimizer of Keras.
      run: the run that the private steps belong to.
      loss_scale_factor: a power of two, or None.
      name: name of the optimizer.
    """

    # Keras' base class asks for it before there is one.
    _loss_scale_factor: float | None = None

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        run: Run,
        loss_scale_factor: float | None,
        name: str,
    ) -> None:
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.run = run
        self._loss_scale_factor = loss_scale_factor

    def apply(self, grads: Any, trainable_variables: Any = None) -> NoReturn:
        """Refused: these gradients were not clipped per example."""
        raise RuntimeError(
            f"PrivateOptimizer got gradients that were not clipped per example: noise "
            f"would not protect anybody. {HOW_TO_TRAIN}"
        )

    def apply_gradients(self, grads_and_vars: Any) -> NoReturn:
        """Refused, see `apply`."""
        self.apply(None)

    def stateless_apply(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused, see `apply`."""
        self.apply(None)

    def scale_loss(self, loss: Any) -> NoReturn:
        """Refused: only an ordinary training step calls it."""
        self.apply(None)

    @property
    def loss_scale_factor(self) -> float | None:
        """The static scale of losses in the backward pass."""
        return self._loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        # Keras sets None: the base class, and LossScaleOptimizer in what it wraps.
        if value is not None:
            raise AttributeError(
                "loss_scale_factor is that of the whole run: give it to PrivateOptimizer."
            )

    @property
    def variables(self) -> list[Any]:
        return self._variables + self.inner_optimizer.variables

    @property
    def iterations(self) -> Any:
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    def load_own_variables(self, store: Any) -> None:
        # Keras only warns when the numbers differ, and would go on at step 0.
        if len(store.keys()) != len(self.variables):
            raise ValueError(
                f"The saved optimizer has {len(store.keys())} variables, this one "
                f"{len(self.variables)}: it belongs to another inner optimizer or model."
            )
        super().load_own_variables(store)

    def finalize_variable_values(self, trainable_variables: Any) -> None:
        self.inner_optimizer.finalize_variable_values(trainable_variables)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A PrivateOptimizer is not copied or pickled: its noise key is secret, and two "
            "with one key would use the same noise for different gradients. Make another "
            "PrivateOptimizer, which is a run of its own (additional_run=True), or resume "
            "this run from its private state file."
        )
