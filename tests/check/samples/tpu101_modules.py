"""Modules: what `forward` may ask of its inputs and of its parameters."""

from typing import Optional

import torch
from torch import nn
import torch.nn.functional as functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class Gate(nn.Module):
    def __init__(self, width, threshold=0.5, layers=4):
        super().__init__()
        self.threshold = threshold
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width) if layers > 2 else None  # ok: TPU101
        if (self.scale.detach() > 0).all():  # ok: TPU101
            nn.init.zeros_(self.layers[0].weight)

    def forward(self, x, mask=None, temperature: float = 1.0, return_gates: bool = False):
        if mask is not None and mask.any():  # TPU101: the value of mask.any()
            x = x.masked_fill(mask, 0.0)
        if self.training and self.threshold > 0 and temperature != 1.0:  # ok: TPU101
            x = x / temperature
        if self.scale > 1:  # TPU101: The branch depends on the value of self.scale
            x = x * self.scale
        if self.norm is not None:  # ok: TPU101
            x = self.norm(x)
        gates = torch.sigmoid(x)
        for number, layer in enumerate(self.layers):
            if number % 2 == 0 or len(self.layers) == 1:  # ok: TPU101
                x = layer(x)
            elif gates[..., number].mean() > self.threshold:  # TPU101: the value of gates[..., number].mean()
                x = x + layer(x)
        if self.count == 0:  # TPU101: the value of self.count
            self.count += 1
        if x.size(1) % 2 or x.ndim != 3 or x.dtype == torch.float16:  # ok: TPU101
            x = functional.pad(x, (0, 0, 0, 1))
        if not torch.jit.is_scripting() and torch.is_grad_enabled():  # ok: TPU101
            x = x.contiguous()
        return (x, gates) if return_gates else x  # ok: TPU101


class Routed(Gate):
    """The way from a method of its own back to forward."""

    def _balance(self, weights):
        largest = weights.max()
        if largest > 0.9:  # TPU101: the value of largest
            weights = weights.clamp(max=0.9)
        return weights

    def forward(self, x, *args, **kwargs):
        return self._balance(torch.softmax(x, dim=-1))


class Classifier(PreTrainedModel):
    def forward(
        self,
        input_ids: Optional[torch.LongTensor] = None,
        attention_mask: Optional[torch.Tensor] = None,
        past_key_values=None,
        labels: Optional[torch.LongTensor] = None,
        output_attentions: Optional[bool] = None,
        use_cache: Optional[bool] = None,
    ):
        output_attentions = output_attentions if output_attentions is not None else self.config.output_attentions  # ok: TPU101
        use_cache = use_cache or self.config.use_cache  # ok: TPU101
        if past_key_values:  # ok: TPU101
            input_ids = input_ids[:, -1:]
        if attention_mask is None or not self.config.use_mask:  # ok: TPU101
            attention_mask = torch.ones_like(input_ids)
        if input_ids is not None and attention_mask is not None:  # ok: TPU101
            batch, length = input_ids.shape
            if length > self.config.max_position_embeddings:  # ok: TPU101
                raise ValueError("too long")
        if 0 in attention_mask:  # TPU101: the value of attention_mask
            attention_mask = attention_mask.long()
        if (input_ids == self.config.pad_token_id).any() and attention_mask is None:  # TPU101: pad_token_id).any()
            raise ValueError("padding without a mask")
        if self.config.is_decoder and not attention_mask.all():  # TPU101: the value of attention_mask.all()
            attention_mask = attention_mask[:, None]
        outputs = self.model(input_ids, attention_mask=attention_mask)
        logits = self.score(outputs[0])
        loss = None
        if labels is not None:  # ok: TPU101
            labels = labels.to(logits.device)
            if self.config.problem_type is None:  # ok: TPU101
                if self.num_labels == 1:  # ok: TPU101
                    self.config.problem_type = "regression"
                elif self.num_labels > 1 and (labels.dtype == torch.long or labels.dtype == torch.int):  # ok: TPU101
                    self.config.problem_type = "single_label_classification"
            loss = functional.cross_entropy(logits, labels)
        if loss is not None and not loss > 0:  # TPU101: the value of loss
            loss = loss + 1e-6
        return SequenceClassifierOutput(loss=loss, logits=logits, attentions=outputs.attentions if output_attentions else None)  # ok: TPU101


class Rates(nn.Module):
    """The rates of stochastic depth are Python numbers, made on the host when the model is built."""

    def __init__(self, depth, rate):
        super().__init__()
        rates = [one.item() for one in torch.linspace(0, rate, depth)]
        more = torch.linspace(0, rate, depth).tolist()
        self.blocks = nn.ModuleList([Rated(rates[i], more[i]) for i in range(depth)])


class Rated(nn.Module):
    def __init__(self, drop, rate):
        super().__init__()
        self.drop = nn.Dropout(drop) if drop > 0.0 else nn.Identity()  # ok: TPU101
        self.rate = rate

    def forward(self, x):
        if self.rate > 0:  # ok: TPU101
            x = self.drop(x)
        return x
