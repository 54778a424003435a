"""The rehearsal of Keras models on a laptop, before the TPU."""

import keras
import numpy as np
import tensorflow as tf
from tensorflow.keras import layers
from tensorflow.keras.models import Sequential

x, y = np.zeros((256, 8), "float32"), np.zeros((256, 1), "float32")

model = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")  # TPU702: model.compile is called without jit_compile
model.fit(x, y, batch_size=64)

small = keras.Sequential([keras.layers.Dense(1)])
small.compile("sgd", "mse")  # TPU702: small.compile
small.fit(x, y, batch_size=64)


def functional():
    inputs = keras.Input((8,))
    net = keras.Model(inputs, layers.Dense(1)(inputs))
    net.compile(  # TPU702: net.compile
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.MeanSquaredError(),
        metrics=["mae"],
    )
    return net


class Regression(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


regression = Regression()
regression.compile(loss="mse", optimizer="rmsprop")  # TPU702: regression.compile


def train(network):
    network.compile(optimizer="adam", loss="mse")  # TPU702: network.compile
    network.fit(x, y, batch_size=64, epochs=2)


train(Sequential([layers.Dense(1)]))

backbone = tf.keras.applications.MobileNetV2(weights=None, classes=10)
backbone.compile(optimizer="adam", loss="categorical_crossentropy", metrics=["accuracy"])  # TPU702: backbone.compile

for width in (16, 32):
    trial = Sequential([layers.Dense(width), layers.Dense(1)])
    trial.compile(optimizer="adam", loss="mse", steps_per_execution=4)  # TPU702: trial.compile

again = keras.models.load_model("model.keras")
again.compile(optimizer="adam", loss="mse")  # TPU702: again.compile
