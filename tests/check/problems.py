"""Problems in forms that people write, from issue threads and notebooks, in our own words; test_recall.py says how many
are found. A cell is a whole program, the lines of a training step, of a model's forward, of a function that TensorFlow
compiles, or of a program under a TPUStrategy. The problem is one of the rules in the title (with "|" either will do).
"""

# %% TPU101 step: a branch on the loss
if loss > 10:
    loss = loss * 0.1
# %% TPU101 step: a bad batch is skipped
if torch.isnan(loss):
    continue
# %% TPU101 step: rescaled until it fits
while out.abs().max() > 5:
    out = out / 2
# %% TPU101 step: an assertion
assert not torch.isnan(out).any()
# %% TPU101 step: a conditional expression
loss = loss * (1.0 if out.norm() < 1 else 0.5)
# %% TPU101 step: gradients that exploded
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
if norm > 100:
    optimizer.zero_grad()
# %% TPU101|TPU102 step: the best loss so far
if loss.item() < best:
    best = loss.item()
# %% TPU101 step: min of Python
best = min(best, loss)
# %% TPU101 step: any of a comparison
if (y == 0).any():
    loss = loss + 1
# %% TPU101 step: torch.equal
if torch.equal(out.argmax(-1), y):
    hits += 1
# %% TPU101 step: until it has converged
if torch.allclose(out, previous):
    break
# %% TPU101 step: sorted by Python
hardest = sorted(F.cross_entropy(out, y, reduction="none"))[-4:]
# %% TPU101 step: an error is raised
if not out.isfinite().all():
    raise ValueError("not finite")
# %% TPU101 step: not of a tensor
if not (out.argmax(-1) == y).all():
    mistakes += 1
# %% TPU101 step: a loop until a share is reached
while torch.rand(1, device=device) < 0.5:
    loss = loss * 0.9
# %% TPU101 forward: nothing in the mask
if mask.sum() == 0:
    return x
# %% TPU101 forward: images of 0 to 255
if x.max() > 1:
    x = x / 255
# %% TPU101 forward: a chained comparison
if 0 < x.mean() < 1:
    x = x * 2
# %% TPU101 forward: all of Python
if all(lengths == lengths[0]):
    return self.layer(x)
# %% TPU101 tf: a branch of Python
if tf.reduce_sum(x) > 0:
    x = x * 2
# %% TPU101 tf: a loop of Python
while tf.norm(x) > 1.0:
    x = x / 2
# %% TPU204 tf: a range of a tensor
places = tf.range(tf.reduce_max(lengths))
# %% TPU204 tf: zeros of a size of data
room = tf.zeros([tf.reduce_sum(lengths), 8])
# %% TPU101 tf: an assertion
assert tf.reduce_all(x > 0)

# %% TPU102 step: the sum of the losses
total += loss.item()
# %% TPU102 step: float
losses.append(float(loss))
# %% TPU102 step: predictions as an array
predictions.extend(out.argmax(-1).cpu().numpy())
# %% TPU102 step: the accuracy
correct += (out.argmax(-1) == y).sum().item()
# %% TPU102 step: kept on the CPU
history.append(loss.detach().cpu())
# %% TPU102 step: a list
history.append(loss.detach().tolist())
# %% TPU102|TPU103 step: Weights and Biases
wandb.log({"loss": loss.item(), "step": step})
# %% TPU102|TPU103 step: a progress bar
bar.set_postfix(loss=loss.item())
# %% TPU102 step: a moving average
average = 0.9 * average + 0.1 * float(loss)
# %% TPU102 step: the norms of gradients
loss.backward()
norms = [one.grad.norm().item() for one in model.parameters()]
# %% TPU102 step: scikit-learn
accuracy = accuracy_score(y.cpu(), out.argmax(-1).cpu())
# %% TPU102 step: NumPy
values = np.asarray(out.detach().cpu())
# %% TPU102 step: reduced over the ranks
mean = xm.mesh_reduce("loss", loss.item(), np.mean)
# %% TPU102 step: the plateau
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
plateau.step(loss)
# %% TPU102 step: a rate from the data
for group in optimizer.param_groups:
    group["lr"] = float(out.std())
# %% TPU102 step: a tensor of losses
means = torch.tensor([loss, loss * 2])
# %% TPU102 step: an int
most = int(y.max())
# %% TPU102 forward: a number of the batch
self.last = x.mean().item()
# %% TPU102 step: a complex of two
value = complex(out.mean(), out.std())

# %% TPU103 step: printed
print(loss)
# %% TPU103 step: printed in an f-string
print(f"{step}: {loss:.4f}")
# %% TPU103 step: logged
logger.info("loss %s", loss)
# %% TPU103 step: printed by the first rank
xm.master_print(step, loss)
# %% TPU103 step: TensorBoard
writer.add_scalar("loss", loss, step)
# %% TPU103 step: format
print("loss {}".format(loss))
# %% TPU103 step: accelerate's log
accelerator.log({"loss": loss}, step=step)
# %% TPU103 forward: printed in the model
print(x.mean())

# %% TPU104 forward: as many steps as the longest
for i in range(lengths.max()):
    x = self.layer(x)
# %% TPU104 forward: an expert of a list
x = self.experts[lengths.argmax()](x)
# %% TPU104 forward: the last state of each row
last = torch.stack([x[i, lengths[i] - 1] for i in range(x.shape[0])])
# %% TPU104 step: a name of the class
guess = NAMES[out[0].argmax()]
# %% TPU104 forward: a number of iterations
for _ in range(int(mask.sum())):
    x = self.layer(x)
# %% TPU104 step: the best row
best = out[out.max(dim=1).values.argmax()]

# %% TPU201 forward: a mask
kept = x[mask.bool()]
# %% TPU201 step: labels that count
keep = y != -100
loss = F.cross_entropy(out[keep], y[keep])
# %% TPU201 forward: positive ones
x = x[x > 0]
# %% TPU201 forward: rows of different lengths
rows = [one[keep] for one, keep in zip(x, mask.bool())]
# %% TPU201 step: the hardest examples
each = F.cross_entropy(out, y, reduction="none")
loss = each[each > each.mean()].mean()
# %% TPU201 forward: without the padding
x = x[~padding_mask]
# %% TPU201 step: right ones
right = out[out.argmax(-1) == y]
# %% TPU201 notebook: the guide's snippet
masked = outputs[labels >= 0]
# %% TPU201 notebook: a helper without a loop
def masked_mean(outputs, labels):
    return outputs[labels != -100].mean()
# %% TPU201 forward: a mask among indices
x = x[:, x.sum((0, 2)) > 0]

# %% TPU202 forward: negative ones
x[x < 0] = 0
# %% TPU202 step: padding that is ignored
y[y == 0] = -100
# %% TPU202 forward: attention
scores = x @ x.transpose(-1, -2)
scores[mask == 0] = -1e9
# %% TPU202 step: a mask of NumPy
chosen = torch.from_numpy(rng.random(16) < 0.15).to(device)
x[chosen] = 0
# %% TPU202 step: masked words
x[torch.rand_like(x) < 0.1] = 0
# %% TPU202 forward: index_put_
x.index_put_((x > 1,), torch.ones((), device=x.device))
# %% TPU202 forward: two masks
x[(x > 1) & (x < 2)] *= 0.5
# %% TPU202 step: not a number
out[torch.isnan(out)] = 0.0

# %% TPU203 forward: nonzero
places = mask.nonzero()
# %% TPU203 forward: where with one argument
rows, columns = torch.where(mask > 0)
# %% TPU203 step: unique
classes = torch.unique(y)
# %% TPU203 forward: masked_select
x = torch.masked_select(x, mask.bool())
# %% TPU203 forward: boxes
keep = torchvision.ops.nms(x[..., :4].flatten(0, 1), x[..., 4].flatten(), 0.5)
# %% TPU203 forward: boxes of classes
keep = torchvision.ops.batched_nms(x[0, :, :4], x[0, :, 4], lengths, 0.5)
# %% TPU203 step: bincount
counts = torch.bincount(y)
# %% TPU203 forward: argwhere
places = torch.argwhere(x > 0)
# %% TPU203 forward: unique_consecutive
runs = torch.unique_consecutive(lengths)
# %% TPU203 forward: rows of the mask
for row in mask:
    places = row.nonzero()
# %% TPU203 step: each class
for name in range(10):
    rows = (y == name).nonzero(as_tuple=True)[0]
# %% TPU203 step: where of a comparison
rows = torch.where(y == 1)[0]
# %% TPU203 tf: boolean_mask
x = tf.boolean_mask(x, x > 0)
# %% TPU203 tf: unique
values, places = tf.unique(lengths)
# %% TPU203 tf: where
places = tf.where(x > 0)
# %% TPU203 tf: dynamic_partition
parts = tf.dynamic_partition(x, lengths, 2)

# %% TPU204 forward: up to the longest
x = x[:, : lengths.max()]
# %% TPU204 forward: up to the mask's end
x = x[:, : int(mask.sum(1).max())]
# %% TPU204 forward: positions
places = torch.arange(lengths.max(), device=x.device)
# %% TPU204 forward: packed
packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True)
# %% TPU204 step: one_hot
wanted = F.one_hot(y)
# %% TPU204 forward: pieces
pieces = x.split(lengths.tolist())
# %% TPU204 step: as many as there are
best = out.topk(int((y > 0).sum()))
# %% TPU204 step: the first ones
count = (y > 0).sum().item()
out = out[:count]
# %% TPU204 forward: padded to a length of data
x = F.pad(x, (0, 0, 0, int(lengths.max())))
# %% TPU204 forward: a new tensor
room = torch.zeros(int(lengths.sum()), 8, device=x.device)
# %% TPU205 forward: durations
x = torch.repeat_interleave(x, lengths, dim=1)
# %% TPU205 forward: durations, as a method
x = x.repeat_interleave(lengths, dim=0)
# %% TPU205 tf: repeat
x = tf.repeat(x, lengths, axis=0)
# %% TPU206 tf: an array that grows
parts = tf.TensorArray(tf.float32, size=0, dynamic_size=True)

# %% TPU301 program: a tokenizer in map
from datasets import load_dataset
from transformers import AutoTokenizer, Trainer, AutoModelForSequenceClassification
import torch_xla
tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
def tokenize(batch):
    return tokenizer(batch["text"], padding=True, truncation=True)
data = load_dataset("imdb").map(tokenize, batched=True)
# %% TPU301 program: a collator
import torch_xla
from transformers import AutoTokenizer, DataCollatorWithPadding
tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
collator = DataCollatorWithPadding(tokenizer)
# %% TPU301 program: pad_sequence
import torch_xla
from torch.nn.utils.rnn import pad_sequence
def collate(rows):
    return pad_sequence([row["ids"] for row in rows], batch_first=True)
# %% TPU301 program: the longest row
import torch, torch_xla
def collate_fn(rows):
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])
# %% TPU301 program: tokenizer.pad
import torch_xla
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
def collate_fn(rows):
    return tokenizer.pad(rows, return_tensors="pt")
# %% TPU301 strategy: padded_batch
data = data.padded_batch(32, drop_remainder=True)
model.fit(data)
# %% TPU302 program: a loader
import torch, torch_xla
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size=32, shuffle=True)
for x, y in loader:
    loss = model(x.to("xla")).mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
# %% TPU302 program: a sampler of ranks
import torch, torch_xla, torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader, DistributedSampler
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
for x, y in loader:
    model(x.to("xla")).mean().backward()
    xm.optimizer_step(optimizer, barrier=True)

# %% TPU303 step: a longer part in each step
x = x[:, : step + 1]
# %% TPU303 step: more in each step
best = out.topk(1 + step % 5)
# %% TPU303 step: teacher forcing
given = y if random.random() < 0.5 else out.argmax(-1)
# %% TPU303 step: teacher forcing by a name
forced = True if random.random() < 0.5 else False
if forced:
    out = model(y)
# %% TPU303 forward: LayerDrop
for layer in self.layers:
    if self.training and random.random() < 0.1:
        continue
    x = layer(x)
# %% TPU303 forward: LayerDrop by NumPy
for layer in self.layers:
    if np.random.uniform() > 0.1:
        x = layer(x)
# %% TPU303 step: a number of iterations
for _ in range(random.randint(1, 4)):
    out = model(out)
# %% TPU303 step: several sizes
x = F.interpolate(x, size=random.choice((224, 256)))
# %% TPU303 step: several scales
size = random.randrange(320, 640, 32)
x = F.interpolate(x, size=(size, size))
# %% TPU303 step: a random crop
top, left = random.randint(0, 8), random.randint(0, 8)
x = x[:, :, top : top + 24, left : left + 24]
# %% TPU303 program: a crop of a helper
import random, torch, torch_xla
def place():
    return random.randint(0, 8)
for x in loader:
    top = place()
    x = x.to("xla")[:, top : top + 24]
    model(x).mean().backward()
    optimizer.step()
    torch_xla.sync()
# %% TPU303 program: CutMix
import numpy as np, torch, torch_xla
def box(size, share):
    middle = np.random.randint(size)
    return max(middle - int(size * share) // 2, 0), min(middle + int(size * share) // 2, size)
for x in loader:
    x = x.to("xla")
    first, last = box(32, 0.5)
    x[:, :, first:last] = x.flip(0)[:, :, first:last]
    model(x).mean().backward()
    optimizer.step()
    torch_xla.sync()
# %% TPU303 step: sizes of a comprehension
sizes = [random.randint(8, 16) for _ in range(2)]
parts = [x[:, :size] for size in sizes]
# %% TPU303 step: rolled
x = torch.roll(x, step, dims=1)
# %% TPU303 step: a power
x = x ** (1 + 0.1 * step)
# %% TPU303 forward: stochastic depth
if self.training and np.random.rand() < 0.2:
    return x
# %% TPU303 step: one row
row = weights[step % 16]
# %% TPU303 program: a curriculum
import torch, torch_xla
for step in range(100):
    batch = texts[:, : step + 1].to("xla")
    model(batch).mean().backward()
    optimizer.step()
    torch_xla.sync()
# %% TPU303 step: a random number of features
k = np.random.randint(1, 8)
x = x.repeat(1, k)
# %% TPU303 step: dropped at random
if random.random() < 0.1:
    x = torch.zeros_like(x)
# %% TPU304 step: losses of all steps
losses.append(loss)
mean = torch.stack(losses).mean()
# %% TPU304 program: a cache that grows
import torch, torch_xla
ids = start.to("xla")
for _ in range(100):
    logits = model(ids)
    ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    torch_xla.sync()
# %% TPU304 step: all outputs
everything = torch.cat([everything, out])
# %% TPU305 program: no attention_mask
import torch, torch_xla
from transformers import AutoModel, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
model = AutoModel.from_pretrained("bert-base-cased").to("xla")
def collate_fn(rows):
    return tokenizer(rows, padding="max_length", max_length=64, return_tensors="pt")
for batch in torch.utils.data.DataLoader(rows, collate_fn=collate_fn, drop_last=True):
    loss = model(input_ids=batch["input_ids"].to("xla")).last_hidden_state.mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
# %% TPU306 strategy: batch
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(64)
model.fit(data)
# %% TPU306 strategy: arrays in fit, without a batch size
model.fit(np.zeros((1000, 8)), np.zeros(1000))
# %% TPU306 strategy: arrays in fit
x, y = np.zeros((1000, 8)), np.zeros(1000)
model.fit(x, y, batch_size=64)

# %% TPU401 program: the model in the function
from accelerate import Accelerator, notebook_launcher
from transformers import AutoModelForCausalLM
def train():
    accelerator = Accelerator()
    model = AutoModelForCausalLM.from_pretrained("gpt2-xl")
notebook_launcher(train, num_processes=8)
# %% TPU402 program: the device before the launch
import torch_xla.core.xla_model as xm
from accelerate import notebook_launcher
device = xm.xla_device()
def train():
    pass
notebook_launcher(train, num_processes=8)
# %% TPU402 program: an Accelerator before the launch
from accelerate import Accelerator, notebook_launcher
accelerator = Accelerator()
def train():
    pass
notebook_launcher(train, num_processes=8)
# %% TPU402|TPU403 program: a model on the device
import torch, torch_xla
from accelerate import notebook_launcher
model = torch.nn.Linear(4, 4).to(torch_xla.device())
def train():
    print(model(torch.ones(4, 4)))
notebook_launcher(train, num_processes=8)
# %% TPU404 program: four processes
import torch_xla.distributed.xla_multiprocessing as xmp
def train(index):
    pass
xmp.spawn(train, nprocs=4)
# %% TPU405 program: never run
import torch, torch_xla, torch_xla.core.xla_model as xm
device = xm.xla_device()
for x in loader:
    optimizer.zero_grad()
    model(x.to(device)).mean().backward()
    optimizer.step()
# %% TPU405 program: not reduced
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
def train(index):
    device = xm.xla_device()
    for x in loader:
        optimizer.zero_grad()
        model(x.to(device)).mean().backward()
        optimizer.step()
        xm.mark_step()
xmp.spawn(train)
# %% TPU406 program: only the first rank reduces
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
def train(index):
    loss = model(data.to(xm.xla_device())).mean()
    if xm.is_master_ordinal():
        print(xm.mesh_reduce("loss", loss.item(), max))
xmp.spawn(train)
# %% TPU406 program: only the first rank meets
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
def train(index):
    if index == 0:
        download()
        xm.rendezvous("downloaded")
xmp.spawn(train)
# %% TPU407 program: the same data on each rank
import torch, torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
def train(index):
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
    for x in loader:
        model(x.to(xm.xla_device())).mean().backward()
        xm.optimizer_step(optimizer)
xmp.spawn(train)
# %% TPU408 program: saved by each rank
import torch, torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
def train(index):
    torch.save(model.state_dict(), "model.pt")
xmp.spawn(train)
# %% TPU410 notebook: spawn
import torch_xla.distributed.xla_multiprocessing as xmp
def train(index):
    pass
xmp.spawn(train, start_method="spawn")

# %% TPU501 program: the environment
import os
os.environ["XLA_USE_BF16"] = "1"
import torch_xla
# %% TPU501 notebook: a magic
%env XLA_DOWNCAST_BF16=1
# %% TPU501 program: setdefault
import os, torch_xla
os.environ.setdefault("XLA_USE_BF16", "1")
# %% TPU502 step: a scaler
scaler = torch.cuda.amp.GradScaler()
scaler.scale(loss).backward()
# %% TPU502 step: autocast of CUDA
with torch.autocast("cuda"):
    out = model(x)
# %% TPU502 step: autocast to float16
with torch.autocast("xla", dtype=torch.float16):
    out = model(x)
# %% TPU502 program: accelerate
from accelerate import Accelerator
import torch_xla
accelerator = Accelerator(mixed_precision="fp16")
# %% TPU502 strategy: the policy of Keras
keras.mixed_precision.set_global_policy("mixed_float16")
# %% TPU502 program: loaded as float16
import torch, torch_xla
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16).to("xla")
# %% TPU503 step: half
out = model(x.half())
# %% TPU503 program: a model in float16
import torch, torch_xla
model = torch.nn.Linear(4, 4).half().to("xla")

# %% TPU601 program: an optimizer of bitsandbytes
import torch_xla
from transformers import TrainingArguments
arguments = TrainingArguments("out", optim="adamw_bnb_8bit")
# %% TPU602 program: fp16
import torch_xla
from transformers import TrainingArguments
arguments = TrainingArguments("out", fp16=True)
# %% TPU603 program: a removed argument
import torch_xla
from transformers import TrainingArguments
arguments = TrainingArguments("out", evaluation_strategy="epoch")
# %% TPU604 program: FSDP without what it needs
import torch_xla
from transformers import TrainingArguments
arguments = TrainingArguments("out", fsdp="full_shard", fsdp_config={"xla": True, "xla_fsdp_grad_ckpt": True, "min_num_params": 100, "transformer_layer_cls_to_wrap": ["GPT2Block"]})
# %% TPU606 program: a smaller last batch
import torch_xla
from transformers import Trainer, TrainingArguments
Trainer(model, TrainingArguments("out", num_train_epochs=3), train_dataset=data).train()
# %% TPU607 program: DeepSpeed
import torch_xla
from transformers import TrainingArguments
arguments = TrainingArguments("out", deepspeed="zero2.json")
# %% TPU607 program: parallelism_config
import torch_xla
from accelerate import Accelerator
from accelerate.parallelism_config import ParallelismConfig
accelerator = Accelerator(parallelism_config=ParallelismConfig(tp_size=4))

# %% TPU701 strategy: jit_compile
model.compile(optimizer="adam", loss="mse", jit_compile=True)
model.fit(data)
# %% TPU703 program: a model outside the scope
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(data)
# %% TPU707 strategy: ragged rows
inputs = keras.Input((None,), ragged=True)
model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
# %% TPU707 strategy: strings in the model
model = keras.Sequential([keras.layers.StringLookup(vocabulary=["a"]), keras.layers.Embedding(10, 4)])
# %% TPU707 strategy: strings in call
class Words(keras.Model):
    def call(self, inputs):
        return self.head(tf.strings.length(tf.strings.split(inputs["text"])))
# %% TPU707 strategy: a named layer of a Sequential
vectorize = keras.layers.TextVectorization(max_tokens=1000)
model = keras.Sequential([vectorize, keras.layers.Embedding(1000, 4)])
model.fit(texts, labels)
# %% TPU707 strategy: texts in the model
inputs = keras.Input((1,), dtype=tf.string)
model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.TextVectorization()(inputs)))
# %% TPU708 strategy: weights without their ending
model.fit(data)
model.save_weights("weights.h5")
# %% TPU708 strategy: a checkpoint without its ending
model.fit(data, callbacks=[keras.callbacks.ModelCheckpoint("best.h5", save_weights_only=True)])
# %% TPU411 program: a kernel of Triton
import torch, torch_xla, triton
@triton.jit
def add(x_ptr, y_ptr, size: triton.language.constexpr):
    pass
# %% TPU411 program: a CUDA extension
import torch_xla
from torch.utils.cpp_extension import load
kernels = load("kernels", ["kernels.cu"])
# %% TPU412 program: the number of ranks, as until 2024
import torch_xla.core.xla_model as xm
def train(index):
    scale = 1e-3 * xm.xrt_world_size()
# %% TPU412 program: the optimizer of old guides
import torch_xla.core.xla_model as xm
from transformers import AdamW, get_linear_schedule_with_warmup
# %% TPU412 program: SPMD from where it was
import torch_xla.experimental.xla_sharding as xs
# %% TPU709 program: a step that nothing traces
import tensorflow as tf
strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver("local"))
def step(batch):
    return tf.reduce_sum(batch)
for batch in data:
    total = strategy.run(step, args=(batch,))
# %% TPU411 strategy: an op of its own
ops = tf.load_op_library("./ops.so")
# %% TPU206 program: the loop is compiled where it is called
import tensorflow as tf
def squares():
    found = tf.TensorArray(tf.int32, size=0, dynamic_size=True)
    _, found = tf.while_loop(lambda i, _: i < 5, lambda i, one: (i + 1, one.write(i, i * i)), [tf.constant(0), found])
    return found.stack()
result = tf.function(squares, jit_compile=True)()
# %% TPU403 notebook: a model on the notebook's device
import torch, torch_xla
from accelerate import notebook_launcher
device = torch_xla.device()
model = torch.nn.Linear(4, 4).to(device)
weights = torch.tensor([1.0, 2.0], device=device)
def train():
    loss = (model(torch.ones(2, 4)) * weights).mean()
notebook_launcher(train, num_processes=8)
# %% TPU405 program: the step of torch_xla is commented out
import torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
for epoch in range(3):
    for step, batch in enumerate(loader):
        loss = model(batch["ids"].to(device), labels=batch["labels"].to(device)).loss
        loss.backward()
        # xm.optimizer_step(optimizer, barrier=True)
        optimizer.step()
        optimizer.zero_grad()
# %% TPU407 program: a loader of torch_xla shares nothing out
import torch, torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
def train(rank):
    data = torch.utils.data.TensorDataset(torch.arange(12).reshape(-1, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2, drop_last=True)
    for [rows] in pl.MpDeviceLoader(loader, xm.xla_device()):
        model(rows).mean().backward()
        xm.optimizer_step(optimizer)
xmp.spawn(train, args=())
# %% TPU410 notebook: the default is to spawn
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
def _mp_fn(rank, flags):
    device = xm.xla_device()
xmp.spawn(_mp_fn, args=({},))
# %% TPU604 program: FSDP is set up and not asked for
import torch_xla
from transformers import TrainingArguments
arguments = TrainingArguments("out", fsdp_config={"xla": True, "xla_fsdp_v2": True, "xla_fsdp_grad_ckpt": True})
# %% TPU605 program: a setting of another FSDP
import torch_xla
from transformers import TrainingArguments
config = {"xla": True, "xla_fsdp_settings": {"compute_dtype": "bfloat16", "mixed_precision": "bf16"}}
arguments = TrainingArguments("out", fsdp="full_shard", fsdp_config=config)
# %% TPU701 strategy: in the scope, with a loss of its own
with strategy.scope():
    classifier = keras.Sequential([keras.layers.Dense(2)])
    classifier.compile(optimizer=keras.optimizers.Adam(5e-5), loss=keras.losses.SparseCategoricalCrossentropy(), jit_compile=True)
