"""Make the backbone `tiny`: a Qwen3 of under a million parameters, and the record of how.

    python scripts/pretrain_tiny.py --out DIR

The corpus (tiny_corpus.py) is drawn without end from one seed, so there are no epochs; the loss is
on answers only. The prompt is the library's own template, whose fixed pieces are one token each: a
prompt of `mini` is about 40 tokens long.
"""

import argparse
import hashlib
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tiny_corpus import draw
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from forever.data.prompts import prompt, prompt_parts
from forever.data.tasks import Example

EOS, PAD = "<|endoftext|>", "<|pad|>"
VOCABULARY = 1408
LENGTH = 512  # positions of the model; a prompt of `mini` needs 60
Row = tuple[list[int], int]  # the tokens, and how many of them are prompt


def template_pieces() -> list[str]:
    """The fixed text of the prompt, cut where the fields begin.

    There are three pieces with an input, two without.
    """
    with_input = prompt_parts(Example("", "", "x", ""))
    without = prompt_parts(Example("", "", "", ""))
    head, tail = with_input[0].split("\n\n### Input:\n")
    return [head, f"\n\n### Input:\n{tail}", with_input[2], without[0]]


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Make a byte-level BPE.

    Each field gets a leading space, so that a word is the same token as option and as answer.
    """
    rng = random.Random(f"tokenizer/{seed}")
    fields = [
        " ".join((e.instruction, e.input, e.output)) for e in (draw(rng) for _ in range(40_000))
    ]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    core.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("\n ", "\n"), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(template_pieces()),
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(fields, trainer)
    core.add_tokens([AddedToken(piece, normalized=False) for piece in template_pieces()])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        model_max_length=LENGTH,
    )


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Three layers: few enough for one CPU core."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=3,
        intermediate_size=448,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def encode(examples: list[Example], tokenizer: PreTrainedTokenizerFast) -> list[Row]:
    """Prompt and answer are encoded apart, as when the model is used; plain text has no prompt."""
    heads = tokenizer([prompt(e) if e.instruction else "" for e in examples])["input_ids"]
    tails = tokenizer([e.output for e in examples])["input_ids"]
    return [(h + t + [tokenizer.eos_token_id], len(h)) for h, t in zip(heads, tails, strict=True)]


def batches(
    rng: random.Random, tokenizer: PreTrainedTokenizerFast, size: int
) -> Iterator[list[Row]]:
    """Batches of rows of similar length, because padding costs as much as text."""
    while True:
        rows = sorted(
            encode([draw(rng) for _ in range(32 * size)], tokenizer), key=lambda row: len(row[0])
        )
        cuts = [rows[i : i + size] for i in range(0, len(rows), size)]
        rng.shuffle(cuts)
        yield from cuts


def answer_loss(model: Qwen3ForCausalLM, batch: list[Row]) -> torch.Tensor:
    """Mean cross-entropy of answers and their EOS; padding is on the right.

    The head runs at these positions only.
    """
    width = max(len(tokens) for tokens, _ in batch)
    ids_BT = torch.zeros(len(batch), width, dtype=torch.long)
    wanted_BT = torch.zeros(len(batch), width, dtype=torch.bool)
    for b, (tokens, prompt_length) in enumerate(batch):
        ids_BT[b, : len(tokens)] = torch.tensor(tokens)
        wanted_BT[b, max(prompt_length, 1) : len(tokens)] = True
    hidden_BTD = model.model(input_ids=ids_BT).last_hidden_state
    logits_NV = model.lm_head(hidden_BTD[:, :-1][wanted_BT[:, 1:]])
    return cross_entropy(logits_NV, ids_BT[:, 1:][wanted_BT[:, 1:]])


def pretrain(
    model: Qwen3ForCausalLM, stream: Iterator[list[Row]], steps: int, lr: float
) -> list[float]:
    """AdamW, 100 updates of warm-up, then a cosine to a twentieth of `lr`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.05)
    losses: list[float] = []
    started = time.monotonic()
    for step in range(steps):
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = lr * min((step + 1) / 100, 0.05 + 0.95 * cosine)
        loss = answer_loss(model, next(stream))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 250 == 0:
            recent = sum(losses[-250:]) / 250
            print(
                f"step {step + 1}  loss {recent:.4f}  {time.monotonic() - started:.0f} s",
                flush=True,
            )
    return losses


@torch.no_grad()
def accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, rows: int = 2000
) -> float:
    """Share of fresh examples that are right in every token when the true answer is fed in."""
    model.eval()
    rng = random.Random(f"check/{seed}")
    drawn = [draw(rng) for _ in range(rows)]
    questions = [example for example in drawn if example.instruction]
    right = 0
    for tokens, length in encode(questions, tokenizer):
        guesses_T = model(input_ids=torch.tensor([tokens])).logits[0, length - 1 : -1].argmax(-1)
        right += guesses_T.tolist() == tokens[length:]
    return right / rows


README = """# tiny

A Qwen3 of {parameters:,} parameters with a byte-level BPE of {vocabulary} tokens, made for the
embedded benchmark `mini` so that everything runs on CPU without a download. It is of no use for
anything else.

Command: `python scripts/pretrain_tiny.py --out DIR --steps {steps} --seed {seed}`

- Data: `scripts/tiny_corpus.py` draws instructions about the small world of `forever/data/mini.py`
  without end, from the seed. The five instructions of `mini` are not among them, and no label of
  `mini` is the answer to a question about a sentence (asserted at each draw). Exempt is the
  exercise that asks back a word from a given place of a list, where any word of the world can be
  the answer.
- Recipe: {steps} updates of {batch_size} examples, AdamW, learning rate {lr}, 100 warm-up updates,
  cosine to a twentieth, clip 1.0, loss on answers and EOS only.
- Time: {minutes:.1f} minutes with {threads} CPU threads.
- Result: loss {loss:.4f} over the last 250 updates; {accuracy:.1%} of fresh examples of the corpus
  are right in every answer token.
- `model.safetensors`: float32, sha256 `{sha256}`.
  Other numbers of threads or versions of torch round differently, so a rerun gives an equivalent
  file, not this one.

The fixed pieces of the prompt template are one token each, which keeps prompts short. Each field is
encoded with a space in front, so that `positive` is the same token as option and as answer;
decoding strips it.
"""


def save(
    out: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, record: dict
) -> None:
    """The folder that `from_pretrained` reads, and a README with the record."""
    out.mkdir(parents=True, exist_ok=True)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(do_sample=False, **ids)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    sha256 = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    parameters = sum(p.numel() for p in model.parameters())
    text = README.format(parameters=parameters, vocabulary=VOCABULARY, sha256=sha256, **record)
    (out / "README.md").write_text(text)
    print(json.dumps({**record, "parameters": parameters, "sha256": sha256}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    started = time.monotonic()
    tokenizer = make_tokenizer(args.seed)
    model = make_model(tokenizer, args.seed)
    stream = batches(random.Random(f"corpus/{args.seed}"), tokenizer, args.batch_size)
    losses = pretrain(model, stream, args.steps, args.lr)
    minutes = (time.monotonic() - started) / 60
    record = {key: value for key, value in vars(args).items() if key != "out"}
    record |= {"loss": sum(losses[-250:]) / len(losses[-250:]), "minutes": minutes}
    save(args.out, model, tokenizer, record | {"accuracy": accuracy(model, tokenizer, args.seed)})


if __name__ == "__main__":
    main()
