"""Models and optimizers outside of the strategy's scope."""

import tensorflow as tf
from tensorflow import keras
from transformers import TFAutoModelForSequenceClassification, create_optimizer

early = tf.keras.Sequential([keras.layers.Dense(8)])  # TPU703: early is created outside the strategy's scope
early.compile(optimizer="adam", loss="mse")

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
tpu_strategy = tf.distribute.TPUStrategy(resolver)

inputs = keras.Input((8,))
functional = keras.Model(inputs, keras.layers.Dense(1)(inputs))  # TPU703: functional is created
functional.compile(optimizer="adam", loss="mse")
bert = TFAutoModelForSequenceClassification.from_pretrained("bert-base-cased")  # TPU703: bert is created
net = keras.applications.ResNet50(weights=None)  # TPU703: net is created outside
optimizer, schedule = create_optimizer(2e-5, 1000, 100)  # TPU703: optimizer, schedule is
sgd = tf.keras.optimizers.SGD(0.1)  # TPU703: sgd is created
bert.compile(optimizer=optimizer)
net.compile(optimizer=sgd, loss="mse")


def build():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    return model


built = build()  # TPU703: built is created outside


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


own = Net()  # TPU703: own is created outside
own.compile("adam", "mse")

for one in (early, functional, bert, net, built, own):
    one.fit(tf.zeros((128, 8)), tf.zeros((128, 1)), batch_size=128)
