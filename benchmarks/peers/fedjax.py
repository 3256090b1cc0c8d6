"""FedJAX with its default backend (jit): python -m benchmarks.peers.fedjax <workload> <networks>.

"own": the CNN and LSTM that come with FedJAX; MLP and ResNet20 are written in Haiku here.
"scan": a plain LSTM instead, which multiplies all inputs of a layer at once and scans over time.
"""

from __future__ import annotations

from typing import Any

from benchmarks.turns import Turns, play
from benchmarks.workloads import (
    CLIENTS,
    COHORT,
    EVALUATION_BATCH,
    SEED,
    VOCABULARY,
    WORKLOADS,
    load,
)


def main(name: str, networks: str) -> None:
    turns = Turns()
    import fedjax
    import jax
    import numpy as np

    restore_names()
    workload, data, model = WORKLOADS[name], load(name), make_model(name, networks)
    optimizer, server_optimizer = fedjax.optimizers.sgd(workload.lr), fedjax.optimizers.sgd(1.0)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        optimizer,
        server_optimizer,
        fedjax.ShuffleRepeatBatchHParams(batch_size=workload.batch, num_epochs=1),
    )

    def examples(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        if not workload.sequences:
            x = np.ascontiguousarray(np.moveaxis(x, 1, -1))  # channels are last in JAX
        return {"x": x, "y": y.astype(np.int32)}

    clients = fedjax.InMemoryFederatedData({i: examples(*data.client(i)) for i in range(CLIENTS)})
    sampler = fedjax.client_samplers.UniformGetClientSampler(clients, COHORT, SEED)
    check = examples(data.x_check, data.y_check)
    metric = "token_loss" if workload.sequences else "loss"
    state = algorithm.init(model.init(jax.random.PRNGKey(SEED)))

    def loss() -> float:
        return float(fedjax.evaluate_model(model, state.params, [check])[metric])

    test = fedjax.ClientDataset(examples(*data.test))
    batches = list(test.padded_batch(batch_size=EVALUATION_BATCH))
    while True:
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        if turns.evaluate:
            jax.block_until_ready(fedjax.evaluate_model(model, state.params, batches))
        turns.after(loss)


def restore_names() -> None:
    """Two names that FedJAX 0.0.17 uses and that JAX has dropped since."""
    import jax

    jax.tree_map, jax.numpy.NINF = jax.tree_util.tree_map, -jax.numpy.inf


def make_model(name: str, networks: str) -> Any:
    import fedjax
    import haiku as hk
    import numpy as np

    if name == "femnist":
        return fedjax.models.emnist.create_conv_model()
    if name == "shakespeare" and networks == "own":
        return fedjax.models.shakespeare.create_lstm_model()
    if name == "shakespeare":
        row = np.zeros((1, *WORKLOADS[name].shape), np.int32)
        network, sample = scanned_lstm, {"x": row, "y": row}
        metrics = {
            "token_loss": fedjax.metrics.SequenceTokenCrossEntropyLoss(),
            "accuracy": fedjax.metrics.SequenceTokenAccuracy(),
        }
    else:
        network = mlp if name == "digits" else resnet20
        channels, side, _ = WORKLOADS[name].shape
        sample = {"x": np.zeros((1, side, side, channels), np.float32), "y": np.zeros(1, np.int32)}
        metrics = {
            "loss": fedjax.metrics.CrossEntropyLoss(),
            "accuracy": fedjax.metrics.Accuracy(),
        }

    def train_loss(batch: Any, logits: Any) -> Any:
        losses = fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits)
        return losses.mean(axis=-1) if name == "shakespeare" else losses

    return fedjax.create_model_from_haiku(
        transformed_forward_pass=hk.transform(lambda batch: network(batch["x"])),
        sample_batch=sample,
        train_loss=train_loss,
        eval_metrics=metrics,
    )


def mlp(x: Any) -> Any:
    import haiku as hk
    import jax

    return hk.Linear(10)(jax.nn.relu(hk.Linear(64)(hk.Flatten()(x))))


def scanned_lstm(ids: Any) -> Any:
    """Embedding 8, two layers of 256 units, as in FedJAX's model."""
    import haiku as hk
    import jax
    import jax.numpy as jnp

    def layer(x: Any, units: int = 256) -> Any:
        inputs = hk.Linear(4 * units)(x).swapaxes(0, 1)  # all time steps in one product
        shape, spread = (units, 4 * units), hk.initializers.VarianceScaling()
        recurrent = hk.get_parameter("recurrent", shape, init=spread)

        def step(carry: Any, one: Any) -> Any:
            h, c = carry
            i, g, f, o = jnp.split(one + h @ recurrent, 4, axis=-1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((x.shape[0], units))
        return jax.lax.scan(step, (start, start), inputs)[1].swapaxes(0, 1)

    x = hk.Embed(VOCABULARY, 8)(ids)
    for _ in range(2):
        x = hk.to_module(layer)("layer")(x)
    return hk.Linear(VOCABULARY)(x)


def resnet20(x: Any) -> Any:
    """As `wima.models.ResNet20`: GroupNorm with two groups, shortcuts that pad with zeros."""
    import haiku as hk
    import jax
    import jax.numpy as jnp

    def conv(x: Any, width: int, stride: int = 1) -> Any:
        padding = ((1, 1), (1, 1))
        x = hk.Conv2D(width, 3, stride=stride, padding=padding, with_bias=False)(x)
        return hk.GroupNorm(groups=2)(x)

    x = jax.nn.relu(conv(x, 16))
    for width in (16, 32, 64):
        for _ in range(3):
            more = width - x.shape[-1]
            stride = 2 if more else 1
            y = conv(jax.nn.relu(conv(x, width, stride)), width)
            shortcut = x[:, ::stride, ::stride]
            shortcut = jnp.pad(shortcut, ((0, 0), (0, 0), (0, 0), (more // 2, more // 2)))
            x = jax.nn.relu(y + shortcut)
    return hk.Linear(10)(x.mean(axis=(1, 2)))


if __name__ == "__main__":
    play(main)
