"""A real mail server: Debian's postfix with its own configuration, queue and Maildir, on a port of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from notify.servers import certificate

PATIENCE_S = 60.0
USER, PASSWORD = "gpualert", "correct horse battery"

_MAIN = """\
compatibility_level = 3.6
queue_directory = {root}/queue
data_directory = {root}/data
mail_owner = postfix
setgid_group = postdrop
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
shlib_directory = /usr/lib/postfix
maillog_file = /var/log/{log}
myhostname = localhost
mydestination =
mynetworks =
inet_interfaces = loopback-only
inet_protocols = ipv4
virtual_mailbox_domains = example.org
virtual_mailbox_base = {root}/mail
virtual_mailbox_maps = static:inbox/
virtual_uid_maps = static:{uid}
virtual_gid_maps = static:{gid}
virtual_transport = virtual
message_size_limit = {size}
mailbox_size_limit = 0
virtual_mailbox_limit = 0
smtputf8_enable = yes
smtpd_tls_security_level = encrypt
smtpd_tls_cert_file = {cert}
smtpd_tls_key_file = {key}
smtpd_sasl_auth_enable = yes
smtpd_sasl_type = cyrus
smtpd_sasl_path = smtpd
cyrus_sasl_config_path = {root}/config/sasl
smtpd_sasl_local_domain = localhost
smtpd_relay_restrictions = permit_sasl_authenticated, reject
smtpd_recipient_restrictions = permit_sasl_authenticated, reject
"""
_MASTER = """\
127.0.0.1:{port} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
error unix - - n - - error
retry unix - - n - - error
virtual unix - n n - - virtual
anvil unix - - n - 1 anvil
proxymap unix - - n - - proxymap
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
"""


@dataclass
class Postfix:
    """A server at work."""

    port: int
    ca_file: Path
    maildir: Path
    log: Path

    def mails(self) -> list[bytes]:
        """What has been delivered, oldest first."""
        new = self.maildir / "new"
        return [path.read_bytes() for path in sorted(new.iterdir())] if new.is_dir() else []

    def wait_for(self, count: int) -> list[bytes]:
        """Wait until so many mails have been delivered."""
        until = time.monotonic() + PATIENCE_S
        while len(self.mails()) < count:
            assert time.monotonic() < until, self.log.read_text()[-4000:]
            time.sleep(0.05)
        return self.mails()


@pytest.fixture
def postfix(tmp_path: Path) -> Iterator[Postfix]:
    """Starts a server that takes mail from a user with a password over STARTTLS, and delivers it to a Maildir."""
    # Not below the test's own directory, which only root may enter.
    root = Path("/var/tmp") / f"gpualert-postfix-{os.getpid()}"
    root.mkdir(mode=0o755)
    owner = pwd.getpwnam("postfix")
    for name in ("data", "mail", "queue", "config", "config/sasl"):
        (root / name).mkdir()
    os.chown(root / "data", owner.pw_uid, owner.pw_gid)
    os.chown(root / "mail", owner.pw_uid, owner.pw_gid)
    cert, key = certificate(tmp_path, "postfix")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = Path("/var/log") / f"gpualert-postfix-{os.getpid()}.log"
    told = {"root": root, "uid": owner.pw_uid, "gid": owner.pw_gid, "cert": cert, "key": key, "port": port,
            "log": log.name, "size": 3_000_000}  # fmt: skip
    (root / "config" / "main.cf").write_text(_MAIN.format(**told))
    (root / "config" / "master.cf").write_text(_MASTER.format(**told))
    (root / "config" / "sasl" / "smtpd.conf").write_text(
        f"pwcheck_method: auxprop\nauxprop_plugin: sasldb\nmech_list: PLAIN LOGIN\nsasldb_path: {root}/config/sasl/sasldb2\n"
    )
    subprocess.run(
        ["saslpasswd2", "-p", "-c", "-u", "localhost", "-f", str(root / "config" / "sasl" / "sasldb2"), USER],
        input=PASSWORD.encode(), check=True,
    )  # fmt: skip
    os.chown(root / "config" / "sasl" / "sasldb2", owner.pw_uid, owner.pw_gid)
    try:
        subprocess.run(["postfix", "-c", str(root / "config"), "start"], check=True, capture_output=True)
        yield Postfix(port, cert, root / "mail" / "inbox", log)
    finally:
        subprocess.run(["postfix", "-c", str(root / "config"), "stop"], check=False, capture_output=True)
        shutil.rmtree(root)
        log.unlink(missing_ok=True)
