"""A TensorFlow program with a loop of its own: what replicas are given, and what comes back between the steps."""

import tensorflow as tf

strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local"))
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
    optimizer = tf.keras.optimizers.Adam()
    mean = tf.keras.metrics.Mean()


def masked_loss(y_true, y_pred):
    keep = tf.cast(y_true >= 0, tf.float32)
    each = tf.keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
    return tf.reduce_sum(each * keep) / tf.reduce_sum(keep)  # ok: TPU201


def kept_only(y_true, y_pred):
    active = tf.reshape(y_true, (-1,)) != -100
    return tf.reduce_mean(tf.boolean_mask(y_pred, active))  # TPU203: the values of active


@tf.function
def train_step(iterator):
    def replica(inputs):
        x, labels = inputs
        if tf.reduce_sum(x) > 10:  # TPU101: the value of tf.reduce_sum(x)
            x = x / 2.0
        keep = labels >= 0
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            loss = tf.reduce_mean(out[keep])  # TPU201: the values of keep
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        mean.update_state(loss)
        return loss

    return strategy.run(replica, args=(next(iterator),))


class Scaled(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(4)
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def call(self, inputs):
        hidden = self.dense(inputs)
        if self.scale > 1.0:  # TPU101: the value of self.scale
            hidden = hidden * self.scale
        return hidden

    def train_step(self, data):
        x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x, training=True)[y != -100])  # TPU201: the values of y != -100
            if weight is not None:  # ok: TPU101
                loss = loss * tf.reduce_mean(weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


with strategy.scope():
    other = Scaled()
    other.compile(optimizer="adam", loss=masked_loss, metrics=[kept_only])


def fit(dataset, epochs):
    for epoch in range(epochs):
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        for step in range(100):
            loss = train_step(iterator)
            print(step, loss)  # TPU103: the value of loss
            if step % 10 == 0:
                print(step, loss.numpy())  # ok: TPU102
        print(epoch, mean.result().numpy())  # ok: TPU102
