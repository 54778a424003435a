"""A model in the scope, and its optimizer outside of it."""

import tensorflow as tf

strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver("local"))
loss = tf.keras.losses.MeanSquaredError()  # ok: TPU703
rate = tf.keras.optimizers.schedules.CosineDecay(1e-3, 1000)  # ok: TPU703
data = tf.data.Dataset.from_tensor_slices((tf.zeros((128, 8)), tf.zeros((128, 1)))).batch(64, drop_remainder=True)  # ok: TPU703
callbacks = [tf.keras.callbacks.EarlyStopping(patience=2)]  # ok: TPU703
optimizer = tf.keras.optimizers.Adam(rate)  # TPU703: optimizer is created outside

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])  # ok: TPU703
    deep = tf.keras.Sequential([tf.keras.layers.Dense(1)])  # ok: TPU703
    wide = tf.keras.Sequential([tf.keras.layers.Dense(1)])  # ok: TPU703

model.compile(optimizer=optimizer, loss=loss)
model.fit(data, callbacks=callbacks)
deep.compile(
    optimizer=tf.keras.optimizers.Adam(1e-4),  # TPU703: tf.keras.optimizers.Adam(...) is created outside
    loss=loss,
    metrics=[tf.keras.metrics.MeanAbsoluteError()],
)
deep.fit(data)
wide.compile(optimizer="adam", loss="mse", metrics=["mae"])  # TPU703: wide.compile creates the optimizer outside
wide.compile("adam", loss, metrics=[tf.keras.metrics.MeanAbsoluteError()])  # TPU703: tf.keras.metrics.MeanAbsoluteError(...)
wide.fit(data)

after = tf.keras.models.load_model("gs://bucket/model")  # ok: TPU703
print(after.predict(data))
