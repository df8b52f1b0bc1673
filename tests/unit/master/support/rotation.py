"""Steps of a replacement of the certificate authority, with reports of servers as their upkeep sends them."""

import shutil

from nyala.security.authorities import bundle
from nyala.security.authorities.keyring import Keyring
from nyala.security.authority import load
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from tests.unit.master.support.master_cluster import NAMES
from tests.unit.security.certificates import authority

SERVER = "7" * 32


def key_folders(folder):
    """Return the keys of each master, which has a folder of its own with the key of the authority."""
    for name in NAMES:
        (folder / name).mkdir(mode=0o700)
        for file in ("ca.crt", "ca.key"):
            shutil.copy(f"{authority()}/{file}", folder / name)
    return {name: Keyring(str(folder / name)) for name in NAMES}


class Reports:
    """Reports of servers, as their upkeep sends them."""

    def __init__(self, masters, keys):
        self.masters, self.keys = masters, keys
        self.trusted = load(authority()).certificate_pem
        self.issuer = bundle.key_id(load(authority()).certificate)

    async def send(self, leader, name, trusted=None, issuer="", keys=()):
        request = pb.AuthoritiesReport(
            uuid=SERVER, role="tserver", address=f"{name}:1",
            digest=bundle.digest(trusted or self.trusted), issuer=issuer or self.issuer, keys=keys,
        )  # fmt: skip
        if name in NAMES:
            request.uuid, request.role = self.masters.master(name).uuid, "master"
        asked = pb.AccessRulesRequest(authorities=request)
        return (await self.masters.ask(leader, methods.ACCESS_RULES, asked)).authorities

    async def all(self, leader, names, trusted=None, issuer=""):
        for name in names:
            ids = self.keys[name].ids if name in NAMES else ()
            answer = await self.send(leader, name, trusted, issuer, ids)
        return answer

    async def until_step(self, leader, names, trusted, issuer=""):
        """Report for longer than the leader waits for others."""
        for _ in range(5):
            answer = await self.all(leader, names, trusted, issuer)
            await self.masters.heartbeat(SERVER, among=(leader,))
            await self.masters.loop.delay(2_000_000)
        return answer


async def begun(masters, keys):
    if not masters.processes[NAMES[0]].alive:
        masters.start()
    leader = await masters.leader()
    await masters.heartbeat(SERVER)
    made = await masters.ask(leader, methods.ROTATE_AUTHORITY, pb.RotateAuthorityRequest())
    return leader, bundle.parse(made.certificate)[0], Reports(masters, keys)


async def status(masters, leader):
    return await masters.ask(leader, methods.AUTHORITY_STATUS, pb.AuthorityStatusRequest())


async def issuing(masters, keys):
    """Go on until the new authority issues; return leader, certificates, reports."""
    leader, new, reports = await begun(masters, keys)
    answer = await reports.all(leader, NAMES)
    trusted = b"".join(answer.certificates)
    answer = await reports.until_step(leader, [*NAMES, "t"], trusted)
    assert bundle.parse(answer.certificates[0])[0] == new
    return leader, answer, reports
