# %% [markdown]
# # sentence-transformers: a model made of modules, its Trainer of an earlier cell, an evaluator, embeddings afterwards
# A small BERT with a tokenizer of words, mean pooling, in-batch negatives.
#
# Plain run: CPU. Compiles: 8.

# %%
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed

set_seed(90)

# %%
animals, places = ["cat", "dog", "cow", "hen"], ["mat", "log", "hill", "roof"]
words = ["<pad>", "<unknown>", "a", "the", "sits", "on", *animals, *places]
tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unknown>", model_max_length=16
)
tokenizer.save_pretrained("small-bert")
config = BertConfig(
    vocab_size=len(words),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
BertModel(config).save_pretrained("small-bert")
word_vectors = Transformer("small-bert")
model = SentenceTransformer(modules=[word_vectors, Pooling(word_vectors.get_embedding_dimension())], device="cpu")

# %%
pairs = [(f"a {animal}", f"the {animal} sits on the {place}") for animal in animals for place in places]
dataset = Dataset.from_dict({"anchor": [one for one, _ in pairs], "positive": [other for _, other in pairs]})
args = SentenceTransformerTrainingArguments(
    "sentences",
    per_device_train_batch_size=4,
    num_train_epochs=2,
    learning_rate=0.1,
    optim="sgd",
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
trainer = SentenceTransformerTrainer(model, args, train_dataset=dataset, loss=MultipleNegativesRankingLoss(model))

# %%
# %%tpu_train
trainer.train()

# %%
embeddings = model.encode([one for one, _ in pairs[::4]], convert_to_tensor=True)
evaluator = EmbeddingSimilarityEvaluator(
    ["a cat", "a dog", "a cow"], ["the cat sits", "the hen sits", "a cow on the hill"], [1.0, 0.0, 0.8]
)

# %%
compared = {
    "log_history": trainer.state.log_history,
    "embeddings": embeddings,
    "evaluated": evaluator(model),
    "similarity": model.similarity(embeddings, embeddings),
    "weights": model,
    "device": str(model.device),
}
