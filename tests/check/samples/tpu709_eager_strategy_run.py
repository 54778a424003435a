"""Steps of a TPUStrategy: in a tf.function, and outside of all."""

import tensorflow as tf
from parts import imported_step

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam()
data = strategy.experimental_distribute_dataset(tf.data.TFRecordDataset("a").batch(8, drop_remainder=True))


def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


@tf.function
def traced_step(x, y):
    return train_step(x, y)


def plain_step(x, y):
    return model(x)


strategy.run(plain_step, args=next(iter(data)))  # TPU709: strategy.run runs plain_step without a tf.function


@tf.function
def train_on(batch):
    return strategy.run(train_step, args=batch)  # ok: TPU709


def run_step(batch):
    return strategy.run(train_step, args=batch)  # TPU709: strategy.run runs train_step without a tf.function


def run_in_a_graph(batch):
    return strategy.run(train_step, args=batch)  # ok: TPU709


def never_called(batch):
    return strategy.run(train_step, args=batch)  # ok: TPU709


def epoch():
    for batch in data:
        run_step(batch)


def validate():
    for batch in data:
        strategy.run(model, args=batch)  # ok: TPU709
        strategy.run(fn=train_step, args=batch)  # TPU709: strategy.run runs train_step without a tf.function
        strategy.experimental_run_v2(train_step, args=batch)  # TPU709: strategy.experimental_run_v2 runs train_step


class Loop:
    def __init__(self, strategy):
        self.strategy = tf.distribute.TPUStrategy(resolver)

    def step(self, batch):
        return train_step(*batch)

    def eager(self, batch):
        return self.strategy.run(train_step, args=batch)  # TPU709: self.strategy.run runs train_step

    @tf.function
    def traced(self, batch):
        return self.strategy.run(train_step, args=batch)  # ok: TPU709

    @tf.function(reduce_retracing=True)
    def compiled(self, batch):
        return self.inner(batch)

    def inner(self, batch):
        return self.strategy.run(train_step, args=batch)  # ok: TPU709


compiled = tf.function(run_in_a_graph)
with strategy.scope():
    first = strategy.run(plain_step, (1.0, 1.0))  # TPU709: strategy.run runs plain_step without a tf.function
loop = Loop(strategy)
validate()
for batch in data:
    strategy.run(lambda x, y: model(x), args=batch)  # TPU709: strategy.run runs a lambda without a tf.function
    strategy.run(traced_step, args=batch)  # ok: TPU709
    strategy.run(imported_step, args=batch)  # ok: TPU709
    strategy.run(lambda: 1)  # TPU709: strategy.run runs a lambda without a tf.function
    loop.eager(batch)
    loop.compiled(batch)
    train_on(batch)
    compiled(batch)
    epoch()
