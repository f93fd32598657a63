"""Chat templates: what is supervised, what is cut, and that a prompt is the same everywhere."""

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Call
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.check import read_tasks, tasks_table
from forever.data.collation import pack, pad
from forever.data.encoding import Encoded, Encoder
from forever.data.prompts import Chat, make_prompt
from forever.data.tasks import Example, Message, Task
from forever.errors import InputError

CPU = torch.device("cpu")
SAID = [
    ("user", "What is the colour of the sky?"),
    ("assistant", "It is blue, été!"),
    ("user", "And of grass?"),
    ("assistant", "Green."),
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# An earlier answer loses what was thought, and every last one has thoughts.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think></think>\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(template: str | None, end: str = "<|im_end|>", bos: str | None = None) -> Any:
    """Byte-level BPE that knows the words of SAID and puts BOS before a text of its own accord."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator([" ".join(text for _, text in SAID)] * 9, trainer)
    names = {"bos_token": bos} if bos else {}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<|pad|>",
        eos_token=end,
        extra_special_tokens=["<|im_start|>", "<start_of_turn>", "<|start_header_id|>"],
        **names,
    )
    if bos:
        inner = fast.backend_tokenizer
        pair = (bos, fast.convert_tokens_to_ids(bos))
        inner.post_processor = processors.TemplateProcessing(f"{bos} $A", special_tokens=[pair])
    fast.chat_template = template
    return fast


def conversation(said: list[tuple[str, str]] = SAID, name: str = "t/train/0") -> Example:
    *turns, (_, answer) = said
    return Example(name, "", "", answer, tuple(Message(*turn) for turn in turns))


def learned(tokenizer: Any, encoded: Encoded) -> list[str]:
    """The supervised tokens, as one text for each answer."""
    texts = [""]
    for place, token in enumerate(encoded.answer):
        if place in encoded.heard:
            texts += [""] if texts[-1] else []
        else:
            texts[-1] += tokenizer.decode([token])
    return texts


# ---- as TRL has it

TRL = [
    ("llama3", "<|eot_id|>", "<|begin_of_text|>"),
    ("gemma", "<end_of_turn>", "<bos>"),
    ("qwen3_instruct_2507", "<|im_end|>", None),
    ("lfm2", "<|im_end|>", "<|startoftext|>"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "end", "bos"), TRL)
@pytest.mark.filterwarnings("ignore")
def test_tokens_and_labels_are_those_of_sft_trainer(
    name: str, end: str, bos: str | None, tmp_path: Path
) -> None:
    """With `assistant_only_loss`, on templates that TRL ships. TRL's own variants for training mark
    what is supervised; we find it in the templates as models have them."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from transformers import LlamaConfig, LlamaForCausalLM

    file = Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja"
    tokenizer = byte_tokenizer(file.read_text("utf-8"), end, bos)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **heads))
    messages = [{"role": role, "content": text} for role, text in SAID]
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(
            output_dir=str(tmp_path), assistant_only_loss=True, report_to="none", use_cpu=True,
            bf16=False, disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_list([{"messages": messages}]),
        processing_class=tokenizer,
    )  # fmt: skip
    theirs = trainer.train_dataset[0]
    chat = Chat(tokenizer, tokenizer.chat_template, "all")
    assert chat.examples(conversation()) == (conversation(),)
    ours = Encoder(tokenizer, 512, prompt=chat).encode(conversation())
    labels = [-100] * len(ours.prompt + ours.answer)
    for place in ours.learned:
        labels[len(ours.prompt) + place] = ours.answer[place]
    assert theirs["input_ids"] == [*ours.prompt, *ours.answer]
    assert theirs["labels"] == labels
    assert learned(tokenizer, ours)[0].startswith(f"It is blue, été!{end}")


# ---- what is supervised


@pytest.mark.parametrize("bos", [None, "<bos>"])
def test_the_last_answer_or_all_are_supervised(bos: str | None) -> None:
    template = CHATML if bos is None else "{{ bos_token }}" + CHATML
    tokenizer = byte_tokenizer(template, bos=bos)
    example = conversation([("system", "Be brief."), *SAID])
    last, every = (
        Encoder(tokenizer, 512, prompt=Chat(tokenizer, template, supervise))
        for supervise in ("last", "all")
    )
    one, both = last.encode(example), every.encode(example)
    assert learned(tokenizer, one) == ["Green.<|im_end|>\n"]
    assert learned(tokenizer, both) == ["It is blue, été!<|im_end|>\n", "Green.<|im_end|>\n"]
    ids = one.prompt + one.answer
    assert ids == both.prompt + both.answer
    assert ids.count(tokenizer.bos_token_id) == (0 if bos is None else 1)
    messages = [{"role": turn.role, "content": turn.content} for turn in example.turns]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    for encoder in (last, every):
        assert encoder.encode_prompt(example) == Encoded(one.prompt, (), False)
    assert list(one.prompt) == asked
    assert last.answer_length(example) == len(one.answer) - 2  # without <|im_end|> and its newline


@pytest.mark.parametrize("packed", [True, False])
def test_a_batch_predicts_what_is_learned_and_nothing_else(packed: bool) -> None:
    tokenizer = byte_tokenizer(CHATML)
    encoder = Encoder(tokenizer, 512, prompt=Chat(tokenizer, CHATML, "all"))
    rows = [encoder.encode(conversation()), encoder.encode(conversation(SAID[:2], "t/train/1"))]
    batch = pack(rows, [0, 0], CPU) if packed else pad(rows, 0, CPU)
    expected = [row.answer[i] for row in rows for i in row.learned]
    assert batch.targets.tolist() == expected
    ids = batch.inputs["input_ids"].flatten()
    sequence = [ids[place].item() for place in batch.places]
    assert sequence == [token for row in rows for token in row.prompt + row.answer]
    before = [row.prompt + row.answer for row in rows]
    wanted = [
        tokens[len(row.prompt) + i - 1]
        for row, tokens in zip(rows, before, strict=True)
        for i in row.learned
    ]
    assert ids[batch.predicts].tolist() == wanted
    if packed:  # the second is a beginning of the first
        assert len(ids) == len(before[0])


def test_each_answer_is_an_example_of_its_own_where_a_template_rewrites_earlier_ones() -> None:
    tokenizer = byte_tokenizer(THINKING)
    chat = Chat(tokenizer, THINKING, "all")
    encoder = Encoder(tokenizer, 512, prompt=chat)
    first, second = chat.examples(conversation())
    assert (first.id, second.id) == ("t/train/0/1", "t/train/0")
    texts = [learned(tokenizer, encoder.encode(each)) for each in (first, second)]
    assert texts == [
        ["<think></think>\nIt is blue, été!<|im_end|>\n"],
        ["<think></think>\nGreen.<|im_end|>\n"],
    ]
    assert "<think>" not in tokenizer.decode(encoder.encode(second).prompt)
    assert chat.examples(conversation(SAID[:2])) == (conversation(SAID[:2]),)
    with pytest.raises(InputError) as refused:
        encoder.encode(conversation())
    assert refused.value.key == "data.prompt"


def test_what_a_template_writes_before_every_answer_is_no_part_of_it() -> None:
    tokenizer = byte_tokenizer(THINKING)
    chat = Chat(tokenizer, THINKING)
    assert chat.said("<think></think>\nGreen.") == "Green."
    assert chat.said("<thi") == ""  # nothing is said yet, so nothing is wrong yet
    assert chat.said("Green.") == "Green."
    assert Chat(tokenizer, CHATML).said("Green.") == "Green."


def test_an_instruction_and_its_input_are_one_message() -> None:
    tokenizer = byte_tokenizer(CHATML)
    chat = Chat(tokenizer, CHATML)
    assert chat.text(Example("t", "Do it.", "With this.", "")) == (
        "<|im_start|>user\nDo it.\n\nWith this.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat.parts(Example("t", "Do it.", "With this.", ""))[1] == "With this."
    assert "Do it.<|im_end|>" in chat.text(Example("t", "Do it.", "", ""))


# ---- what is cut


def test_a_long_conversation_loses_its_oldest_turns_and_keeps_the_system() -> None:
    tokenizer = byte_tokenizer(CHATML)
    chat = Chat(tokenizer, CHATML, "all")
    said = [("system", "Be brief."), *SAID, ("user", "And of snow?"), ("assistant", "White.")]
    whole = Encoder(tokenizer, 512, prompt=chat).encode(conversation(said))
    size = len(whole.prompt + whole.answer)
    assert not Encoder(tokenizer, size, prompt=chat).encode(conversation(said)).truncated
    kept = [*said[:1], *said[3:]]
    for length in (size - 1, len(ids_of(tokenizer, chat, kept))):
        row = Encoder(tokenizer, length, prompt=chat).encode(conversation(said))
        assert (row.truncated, row.prompt + row.answer) == (True, ids_of(tokenizer, chat, kept))
    last = [*said[:1], *said[5:]]
    tight = len(ids_of(tokenizer, chat, last)) - 2
    row = Encoder(tokenizer, tight, prompt=chat).encode(conversation(said))
    assert row.prompt + row.answer != ids_of(tokenizer, chat, last)
    text = tokenizer.decode(row.prompt)  # of the last turn the middle is cut
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nAn")
    assert text.endswith("?<|im_end|>\n<|im_start|>assistant\n")
    assert len(row.prompt + row.answer) == tight


def ids_of(tokenizer: Any, chat: Chat, said: list[tuple[str, str]]) -> tuple[int, ...]:
    row = Encoder(tokenizer, 512, prompt=chat).encode(conversation(said))
    return row.prompt + row.answer


# ---- refusals


def test_what_a_template_cannot_do_is_refused() -> None:
    tokenizer = byte_tokenizer(CHATML)
    moody = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    headless = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    asked = headless + "{% if add_generation_prompt %}Answer: {% endif %}"
    example = conversation([("system", "Be brief."), *SAID[:2]])
    for template, reason in ((moody + CHATML, "no system"), (asked, "otherwise than it asks")):
        with pytest.raises(InputError, match=reason) as refused:
            Encoder(tokenizer, 512, prompt=Chat(tokenizer, template)).encode(example)
        assert refused.value.key == "data.prompt"
    ends = [tokenizer.eos_token_id]
    endless = CHATML.replace("<|im_end|>", "")
    with pytest.raises(InputError, match="does not stop"):
        Encoder(tokenizer, 512, prompt=Chat(tokenizer, endless), ends=ends).encode(example)
    assert Encoder(tokenizer, 512, prompt=Chat(tokenizer, CHATML), ends=ends).encode(example).answer
    # A control token in an answer that is learned, be it an earlier one.
    task = Task("t", (conversation([SAID[0], ("assistant", "<|im_start|>"), *SAID[2:]]),), (), "")
    Encoder(tokenizer, 512, prompt=Chat(tokenizer, CHATML)).encode_all(task, 8)
    with pytest.raises(InputError, match="control token"):
        Encoder(tokenizer, 512, prompt=Chat(tokenizer, CHATML, "all")).encode_all(task, 8)
    for settings in ({"prompt": "chat"}, {"prompt": "alpaca"}, {"prompt": "none"}):
        data = RunConfig.parse({"data": settings}).data
        with pytest.raises(InputError) as refused:
            make_prompt(data, byte_tokenizer(None)).question(example)
        assert refused.value.key == "data.prompt"


def test_a_clock_is_stopped() -> None:
    template = "{{ strftime_now('%d %b %Y') }} " + CHATML
    tokenizer = byte_tokenizer(template)
    text = Chat(tokenizer, template).text(conversation())
    assert text.startswith("26 Jul 2024 <|im_start|>user\n")
    today = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert today.startswith(datetime.now().strftime("%d %b %Y"))  # as it would be


# ---- in a run's configuration


def test_a_template_of_a_file_is_part_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(CHATML, "utf-8")
    config = RunConfig.parse({"data": {"prompt": str(file), "supervise": "all"}})
    file.unlink()
    assert RunConfig.parse(config.model_dump(mode="json")) == config
    assert config.override({"data.benchmark": "other"}).data.prompt == CHATML
    other = config.override({"data.prompt": CHATML + " "})
    plain = RunConfig.parse({})
    chat = plain.override({"data.prompt": "chat"})
    runs = (plain, chat, config, other, config.override({"data.supervise": "last"}))
    assert len({run.fingerprint() for run in runs}) == 5
    assert CHATML not in str(config.identity())
    for settings in (
        {"prompt": "chatt"},
        {"prompt": str(file)},
        {"supervise": "all"},
        {"supervise": "all", "prompt": "none"},
    ):
        with pytest.raises(InputError) as refused:
            RunConfig.parse({"data": settings})
        assert refused.value.key.startswith("data")


def test_overlap_is_found_in_the_rendered_prompt(tmp_path: Path) -> None:
    """Also where the test question is an earlier turn of a conversation whose answers are learned,
    or differs in what the template strips."""
    folder = tmp_path / "mine" / "talk"
    folder.mkdir(parents=True)
    stripping = CHATML.replace("m.content", "m.content | trim")
    tokenizer = byte_tokenizer(stripping)
    write(folder / "train.jsonl", SAID)
    write(folder / "test.jsonl", [("user", f" {SAID[0][1]}\n"), ("assistant", "Blue.")])
    values = {"benchmark": "mine", "order": ["talk"], "root": str(tmp_path), "prompt": stripping}
    data = RunConfig.parse({"data": values | {"supervise": "all"}}).data
    with pytest.raises(InputError, match="repeats train row talk/train/0"):
        load_benchmark(data, make_prompt(data, tokenizer))
    (tmp_path / "mine" / "other").mkdir()
    write(tmp_path / "mine" / "other" / "train.jsonl", SAID[2:])
    (folder / "test.jsonl").rename(tmp_path / "mine" / "other" / "test.jsonl")
    write(folder / "test.jsonl", [("user", "Who?"), ("assistant", "Me.")])
    run = RunConfig.parse({"data": {**data.model_dump(), "order": ["talk", "other"]}})
    table = tasks_table(read_tasks(run, prompt=make_prompt(data, tokenizer)))
    assert [line["overlap"] for line in table.records] == [0, 1]
    last = data.model_copy(update={"supervise": "last"})
    (task,) = load_benchmark(last, make_prompt(last, tokenizer)).tasks
    assert (len(task.train), len(task.test)) == (1, 1)


def test_data_check_shows_conversations_and_names_those_that_are_cut(
    backbone_folder: Path, tmp_path: Path, call: Call
) -> None:
    """In a folder by the template of the model, in a run by its own."""
    folder, model = tmp_path / "mine" / "talk", tmp_path / "model"
    folder.mkdir(parents=True)
    said = [(role, text if role == "user" else "square") for role, text in SAID]
    write(folder / "train.jsonl", [("system", "Be brief."), *said])
    write(folder / "test.jsonl", [("user", "And of snow?"), ("assistant", "round")])
    shutil.copytree(backbone_folder, model)
    template = CHATML.replace("<|im_end|>", " <eos>").replace("<|im_start|>", " ")
    (model / "chat_template.jinja").write_text(template, "utf-8")
    code, printed, error = call(
        "data", "check", str(folder.parent), "--model", str(model), "--json"
    )
    assert (code, error) == (0, "")
    (shown,) = json.loads(printed)["examples"]["talk"]["examples"]
    assert shown["supervised"][-1] == "<eos>"
    assert shown["supervised"].count("<eos>") == 1
    values = {"benchmark": "mine", "order": ["talk"], "root": str(tmp_path), "prompt": "chat"}
    length = len(shown["prompt"]) + len(shown["supervised"]) - 1
    run = {"model": {"name": str(model), "max_length": length}, "data": values}
    run["data"]["supervise"] = "all"
    (tmp_path / "run.yaml").write_text(json.dumps(run), "utf-8")
    code, printed, error = call("data", "check", str(tmp_path / "run.yaml"), "--json")
    assert (code, error) == (0, "")
    lengths = json.loads(printed)["lengths"]
    assert lengths["rows"][0]["cut in training"] == 1
    assert "(talk/train/0)" in lengths["note"]
    (tmp_path / "endless.jinja").write_text(template.replace(" <eos>", ""), "utf-8")
    endless = f"data.prompt={tmp_path / 'endless.jinja'}"
    code, _, error = call("data", "check", str(tmp_path / "run.yaml"), endless)
    assert (code, "does not stop" in error) == (2, True)
    code, _, error = call("data", "check", str(tmp_path / "run.yaml"), "data.prompt=alpaca")
    assert (code, "supervise" in error) == (2, True)


def write(path: Path, said: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": text} for role, text in said]
    path.write_text(json.dumps({"messages": messages}) + "\n", "utf-8")
