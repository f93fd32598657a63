"""A password in the address of a tracking server gets into no file, no message and no traceback."""

import pytest
from commands import Call

from forever.text import holds_secret, without_credentials

SECRET = "s3cret-pw"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("http://me:s3cret-pw@host:5000/x", "http://***@host:5000/x"),
        ("--mlflow=https://me:s3cret-pw@host", "--mlflow=https://***@host"),
        ("postgresql+psycopg2://me:s3cret-pw@host/db", "postgresql+psycopg2://***@host/db"),
        ("http://me:p@s3cret-pw/s3cret-pw@host/x", "http://***@host/x"),
        ("http://s3cret-pw@host", "http://***@host"),
        (f"http://me:{'s3cret-pw' * 50}@host", "http://***@host"),
        ("pg://h/db?user=me&password=s3cret-pw&ssl=1", "pg://h/db?user=me&password=***&ssl=1"),
        (
            "a (http://me:s3cret-pw@a/b) and http://me:s3cret-pw@c",
            "a (http://***@a/b) and http://***@c",
        ),
        ("me:s3cret-pw@host:5000", "***@host:5000"),
        ("--mlflow=me:p@s3cret-pw@host", "--mlflow=***@host"),
        ("https://h/x?X-Amz-Signature=s3cret-pw&a=1", "https://h/x?X-Amz-Signature=***&a=1"),
        ("https://h/x?sig=s3cret-pw;b", "https://h/x?sig=***;b"),
        ("https://h/x?a=1&access_token=s3cret-pw", "https://h/x?a=1&access_token=***"),
        ("HF_TOKEN=s3cret-pw forever", "HF_TOKEN=*** forever"),
        ("Invalid token hf_s3cretpws3cretpw!", "Invalid token ***!"),
        ("Authorization: Bearer s3cret-pw", "Authorization: Bearer ***"),
        ("evaluation.max_new_tokens=3 method.max_tokens=100 RUN@TASK out/a:b@2", None),
        (f"KEY_OF={'sk-proj-' + 'a1' * 12}", "KEY_OF=***"),
        ("https://hooks.slack.com/services/T0/B0/s3cret", "https://hooks.slack.com/services/***"),
        ("AUTH=Basic dXNlcjpwdw==", "AUTH=Basic ***"),
        ("sk-learn-like-names and task-specific", None),
        ("models/hf_llama_2_7b_converted", None),
        ("Basic reasoning. {q}", None),
        ("nothing: http://host/x?y=1, sqlite:///a.db runs/x@2", None),
    ],
)
def test_addresses_lose_their_credentials(text: str, clean: str | None) -> None:
    assert without_credentials(text) == (text if clean is None else clean)


@pytest.mark.parametrize(
    "value",
    ["sk-proj-" + "a1" * 12, "https://hooks.slack.com/services/T0/B0/s3cret", "Basic dXNlcjpwdw=="],
)
def test_a_secret_is_refused_under_any_name(value: str) -> None:
    assert holds_secret(f"PLACE={value}")


def test_what_the_environment_keeps_secret_is_known_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "nothing-secret")
    text = f"request failed: key {SECRET}, nothing-secret"
    assert without_credentials(text) == "request failed: key ***, nothing-secret"


def test_a_traceback_has_no_password(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    def fail(name: str) -> None:
        try:
            raise RuntimeError(f"inner http://me:{SECRET}@host")
        except RuntimeError as error:
            raise RuntimeError(f"outer http://me:{SECRET}@host") from error

    monkeypatch.setattr("forever.sweeps.named_runs.load_run", fail)
    code, _, printed = call("run", "mini/forever")
    assert code == 1
    assert "Traceback" in printed
    assert "inner http://***@host" in printed
    assert "outer http://***@host" in printed
    assert SECRET not in printed
