"""A training loop written by hand."""

import tensorflow as tf
from tensorflow.distribute import TPUStrategy
from tensorflow.distribute.cluster_resolver import TPUClusterResolver


def make_model():
    return tf.keras.Sequential([tf.keras.layers.Dense(16), tf.keras.layers.Dense(1)])


def main():
    strategy = TPUStrategy(TPUClusterResolver(tpu="local"))
    data = tf.data.Dataset.from_tensor_slices(tf.zeros((1024, 8))).batch(128, drop_remainder=True)
    model = make_model()  # TPU703: model is created outside the strategy's scope
    optimizer = tf.keras.optimizers.Adam()  # TPU703: optimizer is created
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()  # TPU703: accuracy is created
    mean = tf.keras.metrics.Mean()  # TPU703: mean is created
    on_host = tf.keras.metrics.Mean()  # ok: TPU703

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(x[:, 0], model(x))
        mean(loss)
        return loss

    @tf.function
    def train_step(x):
        return strategy.run(step, args=(x,))

    for batch in strategy.experimental_distribute_dataset(data):
        on_host.update_state(train_step(batch))


main()
