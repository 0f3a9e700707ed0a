"""A failing run's mail through a real mail server, down to the message it has stored."""

from __future__ import annotations

import email
import email.policy
import gzip
import json
import os
from pathlib import Path

from conftest import Gpualert, plain
from notify.failing import environment_for, fail, flush, spool

from e2e.mail.postfix import PASSWORD, USER, Postfix, postfix

__all__ = ["plain", "postfix"]


def _environment(postfix: Postfix, **more: str) -> dict[str, str]:
    return environment_for(
        postfix.port, "starttls", GPUALERT_SMTP_CA_FILE=str(postfix.ca_file), GPUALERT_SMTP_USERNAME=USER,
        GPUALERT_SMTP_PASSWORD=PASSWORD, **more,
    )  # fmt: skip


def test_the_stored_message_is_whole(plain: Gpualert, postfix: Postfix) -> None:
    done = fail(plain, _environment(postfix, RANK="3", GPUALERT_NODE_NAME="gpu-17"))
    assert (done.returncode, spool(done)) == (3, []), done.stderr
    (stored,) = postfix.wait_for(1)
    mail = email.message_from_bytes(stored, policy=email.policy.default)
    assert str(mail["Subject"]).startswith("[gpualert] llama-7b failed: cuda_oom on rank 3 (gpu-17) after ")
    assert (mail["To"], mail["From"]) == ("oncall@example.org", "gpualert@example.org")
    assert "with ESMTPSA" in mail["Received"]  # by STARTTLS, after a login
    assert mail["Auto-Submitted"] == "auto-generated"
    text, html = mail.get_body(("plain",)), mail.get_body(("html",))
    assert text is not None
    assert html is not None
    assert "CUDA out of memory on GPU 0" in text.get_content()
    assert "How it went" in text.get_content()
    assert "CUDA out of memory on GPU 0" in html.get_content()
    files = {part.get_filename(): part.get_content() for part in mail.iter_attachments()}
    assert gzip.decompress(files["output.log.gz"]) == done.log
    assert json.loads(files["report.json"])["diagnosis"]["class"] == "cuda_oom"


def test_what_the_server_has_no_room_for_is_named(plain: Gpualert, postfix: Postfix, tmp_path: Path) -> None:
    (tmp_path / "dump.bin").write_bytes(os.urandom(4_000_000))
    (tmp_path / "metrics.json").write_text("{}")
    environment = _environment(postfix)
    done = plain.run(
        ["sh", "-c", "touch dump.bin metrics.json; exit 3"], "--artifact", "*.bin", "--artifact", "*.json",
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, spool(done)) == (3, []), done.stderr
    (stored,) = postfix.wait_for(1)
    assert len(stored) < 3_000_000
    mail = email.message_from_bytes(stored, policy=email.policy.default)
    text = mail.get_body(("plain",))
    assert text is not None
    assert "Not attached, because the server takes at most 3000000 bytes: dump.bin" in text.get_content()
    assert "metrics.json" in [part.get_filename() for part in mail.iter_attachments()]
    fates = {a["path"]: a["fate"] for a in done.json("report.json")["artifacts"]}
    assert (fates["dump.bin"], fates["metrics.json"]) == ("over_server_limit", "attached")


def test_names_beyond_ascii(plain: Gpualert, postfix: Postfix) -> None:
    environment = _environment(postfix, GPUALERT_EMAIL_TO="zoë@example.org", GPUALERT_NAME="Größe-模型-🚀")
    done = plain.run(["sh", "-c", "echo 'ValueError: größer'; exit 1"], env=environment)
    assert (done.returncode, spool(done)) == (1, []), done.stderr
    (stored,) = postfix.wait_for(1)
    mail = email.message_from_bytes(stored, policy=email.policy.default)
    assert "Größe-模型-🚀 failed" in str(mail["Subject"])
    text = mail.get_body(("plain",))
    assert text is not None
    assert "größer" in text.get_content()


def test_a_wrong_password_spools_and_the_right_one_flushes(plain: Gpualert, postfix: Postfix) -> None:
    done = fail(plain, {**_environment(postfix), "GPUALERT_SMTP_PASSWORD": "wrong"})
    assert (done.returncode, len(spool(done))) == (3, 1)
    assert "refused the login of gpualert (535)" in done.said[-1]
    assert flush(plain, _environment(postfix)).returncode == 0
    assert len(postfix.wait_for(1)) == 1
    assert spool(done) == []
