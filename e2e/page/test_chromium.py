"""Five reports in a real browser: nothing is fetched, nothing from a log runs; and pictures to look at."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import REPOSITORY, Completed, Gpualert, plain, wait_until

__all__ = ["plain"]

CORPUS = REPOSITORY / "tests" / "data" / "real-cpu"
PICTURES = Path(os.environ.get("GPUALERT_PICTURES", REPOSITORY / "build" / "pictures"))
OOM = """\
for i in $(seq 1 60); do echo "epoch 3 step $i loss 1.$((900 - i))"; sleep 0.03; done
cat >&2 <<'END'
Traceback (most recent call last):
  File "/workspace/train.py", line 212, in <module>
    main()
  File "/workspace/train.py", line 140, in main
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which \
1.21 GiB is free. Of the allocated memory 71.60 GiB is allocated by PyTorch, and 5.10 GiB is reserved by PyTorch but \
unallocated.
END
exit 1
"""
NCCL = """\
for r in 0 1 2 3; do echo "[rank$r]: step 1200 loss 2.1"; done; sleep 0.3
echo '[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2; sleep 0.3
for r in 0 1 3; do echo "[rank$r]:[E1201 05:12:00.1 ProcessGroupNCCL.cpp:632] [Rank $r] Watchdog caught collective \
operation timeout: WorkNCCL(SeqNum=9127, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for \
600029 milliseconds before timing out." >&2; done
exit 1
"""
NAN = "for i in $(seq 1 30); do echo \"{'loss': 'nan', 'grad_norm': 'nan', 'epoch': $i}\"; sleep 0.02; done"
HOSTILE = """\
printf '<script>document.title="owned"</script><img src=x onerror="document.title=1"><style>*{display:none}</style>\\n'
printf '</pre></div></body><iframe src="http://127.0.0.1:9/"></iframe>&lt;b&gt; \\033[31mred\\033]0;title\\007\\n'
printf '\\342\\200\\256evil-right-to-left \\342\\201\\246 \\377\\376\\000 {{ 7*7 }} {%% raw %%} ${alert(1)}\\n'
head -c 20000 /dev/zero | tr '\\0' 'W'; echo
echo 'ValueError: </title><script>document.title="owned"</script>' >&2
exit 1
"""


def _interrupted(plain: Gpualert) -> Completed:
    started = plain.start(["sh", "-c", "for i in $(seq 300); do echo step $i; sleep 0.05; done"], "--name", "llama-7b")
    started.wait_for(b"step 20\n")
    started.process.kill()
    started.process.wait()
    done = plain.run(["true"])
    first = min(path for path in plain.log_dir.iterdir() if path.name[:1].isdigit())
    wait_until(lambda: (first / "report.html").exists() and (first / "report.json").exists(), "the survivor's report")
    shutil.rmtree(done.run_dir)
    return done


def _failing(script: str, **environment: str) -> Callable[[Gpualert], Completed]:
    return lambda plain: plain.run(["sh", "-c", script], "--name", "llama-7b", env=environment)


CASES: dict[str, tuple[Callable[[Gpualert], Completed], str]] = {
    "cuda_oom": (_failing(OOM, RANK="3", WORLD_SIZE="8", GPUALERT_NODE_NAME="gpu-17", CUDA_VISIBLE_DEVICES="0,1,2,3"), "cuda_oom"),
    "nccl_many_ranks": (_failing(NCCL, GPUALERT_NODE_NAME="gpu-17"), "gpu_ecc"),
    "success_with_nan": (_failing(NAN), "nan_loss"),
    "interrupted": (_interrupted, "lost"),
    "hostile": (_failing(HOSTILE), "traceback"),
}  # fmt: skip


def _chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "chromium is missing: apt-get install chromium"
    return found


def _browse(page: Path, profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
               "--disable-background-networking", f"--user-data-dir={profile}", *arguments, page.as_uri()]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


@pytest.mark.parametrize("case", CASES)
def test_a_report_in_a_browser(plain: Gpualert, tmp_path: Path, case: str) -> None:
    make, cls = CASES[case]
    done = make(plain)
    report = done.json("report.json")
    assert report["diagnosis"]["class"] == cls
    page = done.run_dir / "report.html"
    log = tmp_path / "net.json"
    dom = _browse(page, tmp_path / "profile", "--dump-dom", f"--log-net-log={log}").stdout
    # What the browser has made of it: our elements alone, the log's markup as text, the title as we set it.
    assert set(re.findall(r"<([a-zA-Z][\w-]*)", dom)) <= {
        "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "span", "p", "dl", "div", "dt", "dd", "ol",
        "ul", "li", "svg", "text", "tspan", "path", "line", "details", "summary", "table", "tbody", "tr", "th", "td", "footer",
    }  # fmt: skip
    assert re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1] == f"{report['run']['name']}: {cls}"  # type: ignore[index]
    assert _fetched(log) == []
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, size, more in (
        ("", "1000,1500", ()),
        ("-narrow", "390,1800", ()),
        ("-dark", "1000,1500", ("--force-dark-mode",)),
    ):
        picture = PICTURES / f"{case}{name}.png"
        _browse(page, tmp_path / "profile", f"--window-size={size}", f"--screenshot={picture}", *more)
        assert picture.stat().st_size > 20_000
    paper = PICTURES / f"{case}.pdf"
    _browse(page, tmp_path / "profile", f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert paper.read_bytes().startswith(b"%PDF")


def _fetched(log: Path) -> list[str]:
    """The addresses that the page made the browser ask for; what it asks for itself at its start goes to its maker."""
    text = log.read_text().rstrip()
    events = json.loads(text if text.endswith("}") else text.rstrip(",") + "]}")["events"]
    urls = [str(event.get("params", {}).get("url", "")) for event in events]
    makers = ("google", "gvt1", "gstatic", "chromium", "debian")
    return [url for url in urls if url.startswith("http") and not any(maker in url for maker in makers)]
