"""Norm rule of `LSTM`, `GRU` and `SimpleRNN`.

The inputs of all time steps are multiplied by the kernel in one operation, before the
loop over steps. Differentiating the losses with respect to these products gives the
gradients of the gate inputs at each step. The gradient of a kernel is a sum over steps:
each step adds the outer product of its inputs or states with the gradients of its gate
inputs. The loop itself is `keras.src.backend.rnn`, which supports masks, reversed time
and unrolling. In this rule, the loop returns not only the outputs, but also the states
before each step, and the reset gates of a GRU.

Dropout multiplies the inputs or states of all steps with one mask, which Keras draws
per example before the loop. There is one mask for all gates, or one per gate; in the
second case, the gradients of each gate are separate terms.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated, Product
from tf_bandmf.keras.clipping.rules.base import LayerCall, LayerRule, is_plain
from tf_bandmf.keras.clipping.tensors.batches import reshape_examples
from tf_bandmf.keras.compat.keras_objects import rnn

_CELLS = {
    keras.layers.LSTM: keras.layers.LSTMCell,
    keras.layers.GRU: keras.layers.GRUCell,
    keras.layers.SimpleRNN: keras.layers.SimpleRNNCell,
}


class RecurrentRule(LayerRule):
    """The rule for recurrent layers with built-in cells."""

    kinds = tuple(_CELLS)

    def fits(self, layer: Any) -> bool:
        if not super().fits(layer) or layer.stateful:
            return False
        cell = layer.cell
        drops_all = max(cell.dropout, cell.recurrent_dropout) >= 1.0
        return is_plain(cell, _CELLS[type(layer)]) and not drops_all

    def weights(self, layer: Any) -> Sequence[Any]:
        return layer.cell.kernel, layer.cell.recurrent_kernel, layer.cell.bias

    def forward(self, call: LayerCall) -> Any:
        layer, cell = call.layer, call.layer.cell

        def inner_loop(
            sequences: Any, initial_state: Any, mask: Any, training: bool = False
        ) -> tuple[Any, Any, Any]:
            drops: list[list[Any] | None] = [None, None]
            if training:
                drops[0] = _list_of(cell.get_dropout_mask(sequences[:, 0]))
                drops[1] = _list_of(cell.get_recurrent_dropout_mask(initial_state))
            in_time = [drop and [mask[:, None] for mask in drop] for drop in drops]
            projected = _product(sequences, cell.kernel, in_time[0])
            if cell.bias is not None:
                # A GRU may have a second, recurrent bias.
                of_inputs = cell.bias[0] if len(cell.bias.shape) == 2 else cell.bias
                projected = ops.add(projected, of_inputs)
            mask = next(iter(keras.tree.flatten(mask)), None)
            tapped = call.tap(projected)
            step = functools.partial(_STEPS[type(layer)], cell, drops[1])

            def noting(projected: Any, states: Sequence[Any]) -> tuple[Any, Any]:
                output, after, *resets = step(projected, states)
                return ops.concatenate([output, *resets, states[0]], axis=-1), after

            last, outputs, states = rnn(
                noting,
                tapped,
                list(keras.tree.flatten(initial_state)),
                go_backwards=layer.go_backwards,
                mask=mask,
                unroll=layer.unroll,
                input_length=sequences.shape[1],
                zero_output_for_mask=layer.zero_output_for_mask,
                return_all_outputs=True,
            )
            count = 2 + isinstance(cell, keras.layers.GRUCell)
            last = ops.split(last, count, axis=-1)[0]
            outputs, *noted = ops.split(outputs, count, axis=-1)
            # The loop loses the static number of steps. Restore it, since the choice of
            # the method that computes norms depends on it.
            noted = [
                tf.ensure_shape(part, [None, sequences.shape[1], None])
                for part in noted
            ]
            # Restore the time order of the inputs.
            if layer.go_backwards:
                noted = [tf.reverse(part, [1]) for part in noted]
            call.notes.update(noted=noted, sequences=sequences, drops=in_time)
            return last, outputs, states

        return call.run_with(inner_loop=inner_loop)

    def factors(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        cell, units = call.layer.cell, call.layer.units
        gradient = tf.cast(gradient, tf.float32)
        of_inputs, of_states = call.notes["drops"]
        *resets, before = (tf.cast(part, tf.float32) for part in call.notes["noted"])
        states = _dropped(before, of_states)
        recurrent = gradient
        for reset in resets:
            gates, candidate = gradient[..., : 2 * units], gradient[..., 2 * units :]
            if cell.reset_after:
                recurrent = tf.concat([gates, reset * candidate], axis=-1)
            else:
                *others, last = states if len(states) > 1 else states * 3
                states = [*others, reset * last]
        inputs = _dropped(tf.cast(call.notes["sequences"], tf.float32), of_inputs)
        factors: dict[int, Factor] = {
            id(cell.kernel): _terms(inputs, gradient, cell.kernel),
            id(cell.recurrent_kernel): _terms(states, recurrent, cell.recurrent_kernel),
        }
        if cell.bias is not None:
            shape = tuple(cell.bias.shape)
            received = [gradient, recurrent][: len(shape)]
            sums = tf.stack([tf.reduce_sum(part, axis=1) for part in received], axis=1)
            factors[id(cell.bias)] = Instantiated(reshape_examples(sums, *shape))
        return factors


def _list_of(masks: Any) -> list[Any] | None:
    """Returns the dropout masks of a cell as a list; None if there is no dropout."""
    return masks if masks is None or isinstance(masks, list) else [masks]


def _dropped(values: Any, masks: Sequence[Any] | None) -> list[Any]:
    """Returns the values after dropout: one tensor for all gates, or one per gate."""
    if masks is None:
        return [values]
    return [values * tf.cast(mask, values.dtype) for mask in masks]


def _product(values: Any, kernel: Any, masks: Sequence[Any] | None) -> Any:
    """Applies dropout with the masks of the gates, then multiplies by a kernel."""
    lefts = _dropped(values, masks)
    if len(lefts) == 1:
        return ops.matmul(lefts[0], kernel)
    parts = ops.split(ops.convert_to_tensor(kernel), len(lefts), axis=-1)
    return ops.concatenate(list(map(ops.matmul, lefts, parts)), axis=-1)


def _terms(lefts: Sequence[tf.Tensor], gradient: tf.Tensor, kernel: Any) -> Factor:
    """Returns the per-example gradients of a kernel, as sums of outer products.

    Args:
      lefts: the tensors that the kernel multiplies, [B, T, n]: one for all gates, or
        one per gate. In the second case, each gate has its own terms.
      gradient: [B, T, gates * units], the gradient of the losses with respect to the
        products of these tensors and the kernel.
      kernel: the Keras variable.
    """
    rights = [gradient]
    if len(lefts) > 1:
        gates = tf.range(gradient.shape[-1]) * len(lefts) // gradient.shape[-1]
        rights = [
            tf.where(gates == gate, gradient, tf.zeros_like(gradient))
            for gate in range(len(lefts))
        ]
    left, right = tf.concat(lefts, axis=1), tf.concat(rights, axis=1)
    return Product(left, right, tuple(kernel.shape))


# The step functions of cells map projected inputs and old states to the output, the new
# states and, for a GRU, the reset gate.


def _lstm_step(
    cell: Any, masks: Sequence[Any] | None, projected: Any, states: Sequence[Any]
) -> tuple[Any, ...]:
    state, carry = states
    sums = ops.add(projected, _product(state, cell.recurrent_kernel, masks))
    gates = ops.split(sums, 4, axis=-1)
    new_carry = cell.recurrent_activation(gates[1]) * carry
    new_carry += cell.recurrent_activation(gates[0]) * cell.activation(gates[2])
    output = cell.recurrent_activation(gates[3]) * cell.activation(new_carry)
    return output, [output, new_carry]


def _gru_step(
    cell: Any, masks: Sequence[Any] | None, projected: Any, states: Sequence[Any]
) -> tuple[Any, ...]:
    (state,) = states
    units, kernel = cell.units, ops.convert_to_tensor(cell.recurrent_kernel)
    of_update, of_reset, of_candidate = ops.split(projected, 3, axis=-1)
    if cell.reset_after:
        inner = _product(state, kernel, masks)
        if cell.bias is not None:
            inner = ops.add(inner, cell.bias[1])
    else:
        inner = _product(state, kernel[:, : 2 * units], masks and masks[:2])
    update = cell.recurrent_activation(of_update + inner[..., :units])
    reset = cell.recurrent_activation(of_reset + inner[..., units : 2 * units])
    if cell.reset_after:
        recalled = reset * inner[..., 2 * units :]
    else:
        reset_state = reset * state
        recalled = _product(reset_state, kernel[:, 2 * units :], masks and masks[2:])
    candidate = cell.activation(of_candidate + recalled)
    output = update * state + (1 - update) * candidate
    return output, [output], reset


def _simple_step(
    cell: Any, masks: Sequence[Any] | None, projected: Any, states: Sequence[Any]
) -> tuple[Any, ...]:
    output = projected + _product(states[0], cell.recurrent_kernel, masks)
    if cell.activation is not None:
        output = cell.activation(output)
    return output, [output]


_STEPS = {
    keras.layers.LSTM: _lstm_step,
    keras.layers.GRU: _gru_step,
    keras.layers.SimpleRNN: _simple_step,
}
