"""Small models of many kinds, and a training function for them: what a preflight is tried on.

Importing this imports neither torch nor transformers. Widths and lengths are multiples of a tile's, so that nothing is
padded, and every model has one layer of each kind unless the kind needs more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ROWS, LENGTH, WIDTH, HEADS, VOCABULARY, CLASSES = 8, 128, 256, 4, 1024, 128
IMAGE = 64  # pixels of a side
MADE = 4  # steps that the function offers; a trace takes three

Inputs = Mapping[str, Any]
Made = tuple[Any, Inputs]


@dataclass(frozen=True)
class Architecture:
    """`kind`: of model; `make`: a model whose output has a `loss`, or is it, and its inputs; `requires`: a package that
    is no dependency of the tests'."""

    name: str
    kind: str
    make: Callable[[], Made]
    requires: str = ""


def train(name: str) -> None:
    """Steps of AdamW on one batch."""
    import torch
    import torch_xla

    model, inputs = ARCHITECTURES[name].make()
    device = torch_xla.device()
    model.to(device).train()
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    for _ in range(MADE):
        found = model(**{name: on(device, value) for name, value in inputs.items()})
        getattr(found, "loss", found).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


def on(device: Any, value: Any) -> Any:
    """The tensors of an input on the device."""
    if isinstance(value, list):
        return [{name: one.to(device) for name, one in each.items()} for each in value]
    return value.to(device) if hasattr(value, "to") else value


# -- inputs -----------------------------------------------------------------------------------------------------------


def tokens(length: int = LENGTH, rows: int = ROWS) -> Any:
    import torch

    return torch.ones((rows, length), dtype=torch.long)


def texts() -> Inputs:
    return {"input_ids": tokens(), "labels": tokens()}


def texts_of_classes() -> Inputs:
    return {"input_ids": tokens(), "labels": tokens(1)[:, 0]}


def pictures(rows: int = ROWS) -> Any:
    import torch

    return torch.zeros(rows, 3, IMAGE, IMAGE)


def pictures_of_classes() -> Inputs:
    return {"pixel_values": pictures(), "labels": tokens(1)[:, 0]}


def mlp_inputs() -> Any:
    import torch

    return torch.zeros(LENGTH, WIDTH)


# -- transformers -----------------------------------------------------------------------------------------------------

LAYERS = {"num_hidden_layers": 1, "num_attention_heads": HEADS}
ENCODER = {**LAYERS, "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "vocab_size": VOCABULARY}
DECODER = {**ENCODER, "num_key_value_heads": HEADS, "max_position_embeddings": LENGTH}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BART = {
    **{
        f"{side}_{what}": size
        for side in ("encoder", "decoder")
        for what, size in (("layers", 1), ("ffn_dim", 4 * WIDTH))
    },
    **{f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")},
    "d_model": WIDTH,
    "vocab_size": VOCABULARY,
    **SPECIAL,
}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}


def of_transformers(model: str, config: str, inputs: Callable[[], Inputs], **sizes: Any) -> Callable[[], Made]:
    """Makes a model of that class with a configuration of that class."""

    def make() -> Made:
        import transformers

        settings = dict(sizes)
        experts = settings.pop("experts_implementation", "")
        made = getattr(transformers, model)(getattr(transformers, config)(**settings))
        if experts:
            made.set_experts_implementation(experts)
        return made, inputs()

    return make


def llava() -> Made:
    import torch
    import transformers

    size = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, **LAYERS}
    vision = transformers.CLIPVisionConfig(**size, image_size=IMAGE, patch_size=16)
    text = transformers.LlamaConfig(**DECODER)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=5)
    ids = tokens()
    ids[:, : (IMAGE // 16) ** 2] = 5
    return transformers.LlavaForConditionalGeneration(config), {
        "input_ids": ids,
        "labels": tokens(),
        "pixel_values": pictures(),
        "attention_mask": torch.ones_like(ids),
    }


def clip() -> Made:
    import transformers

    size = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, **LAYERS}
    config = transformers.CLIPConfig(
        text_config={**size, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, **SPECIAL},
        vision_config={**size, "image_size": IMAGE, "patch_size": 16},
        projection_dim=WIDTH,
    )
    ids = tokens()
    ids[:, -1] = SPECIAL["eos_token_id"]
    given = {"input_ids": ids, "pixel_values": pictures(), "return_loss": True}
    return transformers.CLIPModel(config), given


def whisper() -> Made:
    import torch
    import transformers

    config = transformers.WhisperConfig(
        **BART, num_mel_bins=80, max_source_positions=LENGTH, max_target_positions=LENGTH, decoder_start_token_id=1
    )
    features = torch.zeros(ROWS, 80, 2 * LENGTH)
    return transformers.WhisperForConditionalGeneration(config), {"input_features": features, "labels": tokens()}


def wav2vec2() -> Made:
    import torch
    import transformers

    config = transformers.Wav2Vec2Config(
        **{**ENCODER, "vocab_size": 32},
        conv_dim=(WIDTH,) * 7,
        mask_time_prob=0.0,
        layerdrop=0.0,
        ctc_loss_reduction="mean",
        pad_token_id=0,
    )
    return transformers.Wav2Vec2ForCTC(config), {"input_values": torch.zeros(2, 16000), "labels": tokens(16, 2)}


def detr() -> Made:
    import torch
    import transformers

    backbone = transformers.ResNetConfig(**RESNET, out_features=["stage2"])
    size = {key: value for key, value in BART.items() if key not in ("vocab_size", *SPECIAL)}
    config = transformers.DetrConfig(backbone_config=backbone, num_queries=16, num_labels=CLASSES, **size)
    labels = [{"class_labels": torch.zeros(2, dtype=torch.long), "boxes": torch.full((2, 4), 0.5)} for _ in range(ROWS)]
    return transformers.DetrForObjectDetection(config), {"pixel_values": pictures(), "labels": labels}


def patch_tst() -> Made:
    import torch
    import transformers

    size = {"d_model": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 1, "ffn_dim": 4 * WIDTH}
    config = transformers.PatchTSTConfig(
        **size, num_input_channels=8, context_length=512, patch_length=16, patch_stride=16, prediction_length=96
    )
    given = {"past_values": torch.zeros(ROWS, 512, 8), "future_values": torch.zeros(ROWS, 96, 8)}
    return transformers.PatchTSTForPrediction(config), given


def mamba(model: str, config: str, **sizes: Any) -> Callable[[], Made]:
    return of_transformers(model, config, texts, hidden_size=WIDTH, num_hidden_layers=1, vocab_size=VOCABULARY, **sizes)


def lora() -> Made:
    import peft
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER))
    config = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config), texts()


# -- diffusers and torch alone ----------------------------------------------------------------------------------------


def with_loss(model: Any, loss: Callable[[Any, Any], Any]) -> Any:
    """A module of the model that returns the loss of its output and `labels`."""
    import torch

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, labels: Any, **inputs: Any) -> Any:
            return loss(self.model(**inputs), labels)

    return WithLoss()


def unet() -> Made:
    import diffusers
    import torch

    model = diffusers.UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(WIDTH // 2, WIDTH),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=HEADS,
    )
    noisy = torch.zeros(ROWS, 4, 32, 32)
    return with_loss(model, lambda found, noise: torch.nn.functional.mse_loss(found.sample, noise)), {
        "sample": noisy,
        "timestep": tokens(1)[:, 0],
        "encoder_hidden_states": torch.zeros(ROWS, LENGTH, WIDTH),
        "labels": noisy,
    }


def classifier(layers: Callable[[Any], list[Any]], inputs: Callable[[], Any]) -> Callable[[], Made]:
    """Makes a sequence of layers, a last linear layer among them, with the cross entropy of its output."""

    def make() -> Made:
        import torch

        given = inputs()
        model = torch.nn.Sequential(*layers(torch.nn))
        return with_loss(model, torch.nn.functional.cross_entropy), {
            "input": given,
            "labels": tokens(1, len(given))[:, 0],
        }

    return make


def mlp_layers(nn: Any) -> list[Any]:
    return [nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, CLASSES)]


def cnn_layers(nn: Any) -> list[Any]:
    return [
        *(nn.Conv2d(3, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(128, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(WIDTH, CLASSES),
    ]


def lstm() -> Made:
    import torch

    class Language(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.lstm = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True)
            self.head = torch.nn.Linear(WIDTH, VOCABULARY)

        def forward(self, input_ids: Any) -> Any:
            return self.head(self.lstm(self.embedding(input_ids))[0]).flatten(0, 1)

    ids = tokens(32)
    return with_loss(Language(), lambda found, labels: torch.nn.functional.cross_entropy(found, labels.flatten())), {
        "input_ids": ids,
        "labels": ids,
    }


def transformer() -> Made:
    import torch

    class Copy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Transformer(WIDTH, HEADS, 1, 1, 4 * WIDTH, dropout=0.0, batch_first=True)

        def forward(self, source: Any, target: Any) -> Any:
            return self.inner(source, target)

    given = torch.zeros(ROWS, LENGTH, WIDTH)
    return with_loss(Copy(), torch.nn.functional.mse_loss), {"source": given, "target": given, "labels": given}


# -- all of them ------------------------------------------------------------------------------------------------------

RESNET = {"embedding_size": 64, "hidden_sizes": [128, 256], "depths": [2, 2], "layer_type": "basic"}
VIT = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, **LAYERS, "image_size": IMAGE, "patch_size": 16}
T5 = {"d_model": WIDTH, "d_kv": 64, "d_ff": 4 * WIDTH, "num_layers": 1, "num_heads": HEADS, "vocab_size": VOCABULARY}
GPT2 = {"n_embd": WIDTH, "n_layer": 1, "n_head": HEADS, "vocab_size": VOCABULARY, "n_positions": LENGTH}

_ALL = (
    Architecture(
        "BERT",
        "encoder",
        of_transformers("BertForSequenceClassification", "BertConfig", texts_of_classes, **ENCODER, num_labels=CLASSES),
    ),
    Architecture(
        "ModernBERT",
        "encoder",
        of_transformers(
            "ModernBertForMaskedLM", "ModernBertConfig", texts, **ENCODER, **SPECIAL, cls_token_id=1, sep_token_id=2
        ),
    ),
    Architecture(
        "DeBERTa v2",
        "encoder",
        of_transformers(
            "DebertaV2ForSequenceClassification",
            "DebertaV2Config",
            texts_of_classes,
            **ENCODER,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            num_labels=CLASSES,
        ),
    ),
    Architecture("GPT-2", "decoder", of_transformers("GPT2LMHeadModel", "GPT2Config", texts, **GPT2)),
    Architecture("Llama", "decoder", of_transformers("LlamaForCausalLM", "LlamaConfig", texts, **DECODER)),
    Architecture("Qwen3", "decoder", of_transformers("Qwen3ForCausalLM", "Qwen3Config", texts, **DECODER, head_dim=64)),
    Architecture(
        "Gemma 3",
        "decoder",
        of_transformers("Gemma3ForCausalLM", "Gemma3TextConfig", texts, **DECODER, head_dim=64, sliding_window=64),
    ),
    Architecture("Falcon", "decoder", of_transformers("FalconForCausalLM", "FalconConfig", texts, **ENCODER)),
    Architecture(
        "Mixtral",
        "mixture of experts",
        of_transformers("MixtralForCausalLM", "MixtralConfig", texts, **DECODER, **EXPERTS),
    ),
    Architecture(
        "Qwen3 MoE",
        "mixture of experts",
        of_transformers(
            "Qwen3MoeForCausalLM",
            "Qwen3MoeConfig",
            texts,
            **DECODER,
            **EXPERTS,
            moe_intermediate_size=WIDTH,
            head_dim=64,
        ),
    ),
    Architecture(
        "T5",
        "encoder-decoder",
        of_transformers("T5ForConditionalGeneration", "T5Config", texts, **T5, decoder_start_token_id=0),
    ),
    Architecture(
        "BART", "encoder-decoder", of_transformers("BartForConditionalGeneration", "BartConfig", texts, **BART)
    ),
    Architecture("Mamba", "state space", mamba("MambaForCausalLM", "MambaConfig")),
    Architecture(
        "Mamba 2",
        "state space",
        mamba("Mamba2ForCausalLM", "Mamba2Config", num_heads=8, head_dim=64, n_groups=1, chunk_size=64),
    ),
    Architecture(
        "ViT",
        "vision",
        of_transformers("ViTForImageClassification", "ViTConfig", pictures_of_classes, **VIT, num_labels=CLASSES),
    ),
    Architecture(
        "ResNet",
        "vision",
        of_transformers(
            "ResNetForImageClassification", "ResNetConfig", pictures_of_classes, **RESNET, num_labels=CLASSES
        ),
    ),
    Architecture(
        "ConvNeXt",
        "vision",
        of_transformers(
            "ConvNextForImageClassification",
            "ConvNextConfig",
            pictures_of_classes,
            hidden_sizes=[64, 128, 128, 256],
            depths=[1, 1, 2, 1],
            num_labels=CLASSES,
        ),
    ),
    Architecture(
        "Swin",
        "vision",
        of_transformers(
            "SwinForImageClassification",
            "SwinConfig",
            pictures_of_classes,
            image_size=IMAGE,
            embed_dim=64,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
            num_labels=CLASSES,
        ),
    ),
    Architecture("DETR", "vision", detr),
    Architecture("Wav2Vec2, CTC", "audio", wav2vec2),
    Architecture("Whisper", "audio", whisper),
    Architecture("CLIP", "multimodal", clip),
    Architecture("LLaVA", "multimodal", llava),
    Architecture("PatchTST", "time series", patch_tst),
    Architecture("Llama, LoRA", "adapters (peft)", lora, "peft"),
    Architecture("UNet2DConditionModel", "diffusion (diffusers)", unet, "diffusers"),
    Architecture("MLP", "torch alone", classifier(mlp_layers, mlp_inputs)),
    Architecture("CNN", "torch alone", classifier(cnn_layers, pictures)),
    Architecture("LSTM", "torch alone", lstm),
    Architecture("nn.Transformer", "torch alone", transformer),
)
ARCHITECTURES = {one.name: one for one in _ALL}
