"""Norm rule of `LSTM`, `GRU` and `SimpleRNN`.

The inputs are projected for all time steps at once, outside of the loop, and the
projection is what is tapped: its gradient is that of the gates' sums at every step. The
gradients of the kernels are then sums over steps of outer products, of inputs and states
with these. The loop is Keras' own (`keras.src.backend.rnn`: masks, order of time,
unrolling). The states are the outputs of the step before, or are given by steps of their
own where that is not certain (masks and a state to begin with).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated, Layout, Product
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    OneTapRule,
    is_plain,
    kernel_shape,
    owns_only,
)
from tf_bandmf.keras.clipping.tensors.variables import tensorflow_variable
from tf_bandmf.keras.compat.keras_objects import rnn

_CELLS = {
    keras.layers.LSTM: keras.layers.LSTMCell,
    keras.layers.GRU: keras.layers.GRUCell,
    keras.layers.SimpleRNN: keras.layers.SimpleRNNCell,
}


class RecurrentRule(OneTapRule):
    """Recurrent layers without dropout inside of the cell."""

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        if not is_plain(layer, *_CELLS) or layer.stateful:
            return False
        cell = layer.cell
        return (
            is_plain(cell, _CELLS[type(layer)])
            and not cell.dropout
            and not cell.recurrent_dropout
            and owns_only(variables, cell.kernel, cell.recurrent_kernel, cell.bias)
        )

    def forward(self, call: LayerCall) -> Any:
        layer, cell = call.layer, call.layer.cell

        def inner_loop(
            sequences: Any, initial_state: Any, mask: Any, training: bool = False
        ) -> tuple[Any, Any, Any]:
            del training  # Nothing but dropout depends on it.
            projected = ops.matmul(sequences, cell.kernel)
            bias = _input_bias(cell)
            if bias is not None:
                projected = ops.add(projected, bias)
            mask = next(iter(keras.tree.flatten(mask)), None)
            first = list(keras.tree.flatten(initial_state))
            # A masked step has the output of the step before it, or zeros at first.
            known = mask is None or (
                not layer.zero_output_for_mask and _begins_with_zeros(call)
            )
            tapped = call.tap(projected)
            last, outputs, states = rnn(
                _STEPS[type(layer)](cell, with_state=not known),
                tapped,
                first,
                go_backwards=layer.go_backwards,
                mask=mask,
                unroll=layer.unroll,
                input_length=sequences.shape[1],
                zero_output_for_mask=layer.zero_output_for_mask,
                return_all_outputs=True,
            )
            units = layer.units
            if known:
                before = tf.concat([first[0][:, None], outputs[:, :-1]], axis=1)
            else:
                before = outputs[..., units:]
                last, outputs = last[..., :units], outputs[..., :units]
            # A loop forgets how many steps there are: how to measure is then chosen when
            # the graph runs, of which both ways are part.
            before = tf.ensure_shape(before, [None, sequences.shape[1], None])
            # In the order of the inputs again.
            before = tf.reverse(before, [1]) if layer.go_backwards else before
            call.notes.update(states=before, sequences=sequences, projected=tapped)
            return last, outputs, states

        return call.run_with(inner_loop=inner_loop)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        cell, units = call.layer.cell, call.layer.units
        gradient = tf.cast(gradient, tf.float32)
        states = tf.cast(call.notes["states"], tf.float32)
        recurrent = gradient
        if isinstance(cell, keras.layers.GRUCell):
            gates, candidate = gradient[..., : 2 * units], gradient[..., 2 * units :]
            reset = tf.cast(_reset_gate(call), tf.float32)
            if cell.reset_after:
                recurrent = tf.concat([gates, reset * candidate], axis=-1)
            else:
                # Two products with different left sides, as twice as many terms.
                states = tf.concat([states, reset * states], axis=1)
                first = tf.concat([gates, tf.zeros_like(candidate)], axis=-1)
                second = tf.concat([tf.zeros_like(gates), candidate], axis=-1)
                recurrent = tf.concat([first, second], axis=1)
        result: dict[int, Factor] = {
            id(cell.kernel): Product(
                call.notes["sequences"],
                gradient,
                Layout.plain(kernel_shape(cell.kernel)),
            ),
            id(cell.recurrent_kernel): Product(
                states, recurrent, Layout.plain(kernel_shape(cell.recurrent_kernel))
            ),
        }
        if cell.bias is not None:
            sums = [tf.reduce_sum(gradient, axis=1)]
            if len(kernel_shape(cell.bias)) == 2:
                sums.append(tf.reduce_sum(recurrent, axis=1))
                result[id(cell.bias)] = Instantiated(tf.stack(sums, axis=1))
            else:
                result[id(cell.bias)] = Instantiated(sums[0])
        return result


def _input_bias(cell: Any) -> Any:
    """What is added to the projected inputs; a GRU may have a second, recurrent one."""
    if cell.bias is None:
        return None
    return cell.bias[0] if len(cell.bias.shape) == 2 else cell.bias


def _begins_with_zeros(call: LayerCall) -> bool:
    if len(call.args) > 1 and call.args[1] is not None:
        return False
    return call.kwargs.get("initial_state") is None


def _reset_gate(call: LayerCall) -> tf.Tensor:
    """The reset gate of all steps at once, from the states that they began with."""
    cell, units = call.layer.cell, call.layer.units
    part = slice(units, 2 * units)
    kernel = tf.convert_to_tensor(tensorflow_variable(cell.recurrent_kernel))
    states = call.notes["states"]
    inner = tf.matmul(states, tf.cast(kernel[:, part], states.dtype))
    if cell.reset_after and cell.bias is not None:
        bias = tf.convert_to_tensor(tensorflow_variable(cell.bias))
        inner += tf.cast(bias[1, part], states.dtype)
    return cell.recurrent_activation(call.notes["projected"][..., part] + inner)


def _noted(output: Any, state: Any, with_state: bool) -> Any:
    return ops.concatenate([output, state], axis=-1) if with_state else output


def _lstm_step(cell: Any, with_state: bool) -> Any:
    def step(projected: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        state, carry = states
        sums = ops.add(projected, ops.matmul(state, cell.recurrent_kernel))
        gates = ops.split(sums, 4, axis=-1)
        new_carry = cell.recurrent_activation(gates[1]) * carry
        new_carry += cell.recurrent_activation(gates[0]) * cell.activation(gates[2])
        output = cell.recurrent_activation(gates[3]) * cell.activation(new_carry)
        return _noted(output, state, with_state), [output, new_carry]

    return step


def _gru_step(cell: Any, with_state: bool) -> Any:
    units = cell.units

    def step(projected: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        (state,) = states
        kernel = ops.convert_to_tensor(cell.recurrent_kernel)
        of_update, of_reset, of_candidate = ops.split(projected, 3, axis=-1)
        if cell.reset_after:
            inner = ops.matmul(state, kernel)
            if cell.bias is not None:
                inner = ops.add(inner, cell.bias[1])
        else:
            inner = ops.matmul(state, kernel[:, : 2 * units])
        update = cell.recurrent_activation(of_update + inner[..., :units])
        reset = cell.recurrent_activation(of_reset + inner[..., units : 2 * units])
        if cell.reset_after:
            recalled = reset * inner[..., 2 * units :]
        else:
            recalled = ops.matmul(reset * state, kernel[:, 2 * units :])
        candidate = cell.activation(of_candidate + recalled)
        output = update * state + (1 - update) * candidate
        return _noted(output, state, with_state), [output]

    return step


def _simple_step(cell: Any, with_state: bool) -> Any:
    def step(projected: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        (state,) = states
        output = projected + ops.matmul(state, cell.recurrent_kernel)
        if cell.activation is not None:
            output = cell.activation(output)
        return _noted(output, state, with_state), [output]

    return step


_STEPS = {
    keras.layers.LSTM: _lstm_step,
    keras.layers.GRU: _gru_step,
    keras.layers.SimpleRNN: _simple_step,
}
