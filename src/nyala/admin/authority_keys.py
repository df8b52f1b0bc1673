"""Transfer of the key of a new authority to another master (see `security/authorities/handover.py`)."""

from collections.abc import Sequence

from cryptography import x509

from nyala.common.addresses import keep_newest
from nyala.common.errors import Forbidden, Unavailable
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.security.authorities import bundle
from nyala.security.authorities.handover import KeyProof, Receiver, Sealed, seal
from nyala.security.authorities.keyring import Keyring
from nyala.security.authority import issuer_among
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb

TIMEOUT_MS = 5_000
MAX_RECEIVED = 16
"""Transfers under way to one master."""


async def send_key(
    env: Env, keys: Keyring, address: str, authorities: Sequence[bytes], links: Sequence[bytes]
) -> None:
    """Send the key of the newest authority to another master, if it lacks it.

    Args:
        env: calls.
        keys: keys of this master; without that of the newest, nothing is sent.
        address: public address of the other master; its certificate has to name the host.
        authorities: certificates of the authorities, PEM, the newest among them.
        links: keys of authorities, each certified by the one before it, PEM; the last is that of the newest.

    Raises:
        Forbidden: the master does not have the key of the authority before, or does not sign at all.
        NyalaError: it does not answer.
    """
    known = [c for pem in authorities for c in bundle.parse(pem)]
    link = bundle.parse(links[-1])[0]
    wanted = next(c for c in known if c.public_key() == link.public_key())
    old = issuer_among([c for c in known if c != wanted], link)
    key = keys.key(bundle.key_id(wanted))
    if old is None or key is None:
        return
    certificate = bundle.pem_of([wanted])
    offer = pb.OfferAuthorityRequest(certificate=certificate, links=links, old=bundle.key_id(old))
    answer = await env.rpc.call(address, methods.OFFER_AUTHORITY, offer, timeout_ms=TIMEOUT_MS)
    if answer.known:
        return
    sealed = seal(key, wanted, old, KeyProof(answer.public, answer.signature))
    request = pb.TakeAuthorityRequest(
        certificate=certificate, receiver=answer.public, public=sealed.public, sealed=sealed.content
    )
    await env.rpc.call(address, methods.TAKE_AUTHORITY, request, timeout_ms=TIMEOUT_MS)


class KeyReceiver:
    """Receiving end of a master. On the loop only.

    Args:
        env: tasks.
        keys: keys of this master; None: it does not sign.
    """

    def __init__(self, env: Env, keys: Keyring | None) -> None:
        self._env = env
        self._keys = keys
        self._receivers: dict[bytes, Receiver] = {}

    async def offer(self, request: pb.OfferAuthorityRequest) -> pb.OfferAuthorityResponse:
        """Answer whether this master has the key of a new authority, with a proof that it has the old one.

        Raises:
            Forbidden: it does not have the old one.
            Unauthenticated: the new authority is not certified by one that this master knows.
            InvalidArgument: malformed.
        """
        keys, wanted = self._require(), _one(request.certificate)
        if keys.key(bundle.key_id(wanted)) is not None:
            return pb.OfferAuthorityResponse(known=True)
        old = keys.key(request.old)
        if old is None:
            raise Forbidden(
                "this master does not have the key of the certificate authority before the new one; copy "
                "ca.key from another master"
            )
        links = [c for pem in request.links for c in bundle.parse(pem)]
        bundle.check_linked(old.public_key(), wanted, links)
        receiver = Receiver(old, wanted)
        keep_newest(self._receivers, receiver.proof.public, receiver, MAX_RECEIVED)
        return pb.OfferAuthorityResponse(
            public=receiver.proof.public, signature=receiver.proof.signature
        )

    async def take(self, request: pb.TakeAuthorityRequest) -> pb.TakeAuthorityResponse:
        """Keep the key of a new authority; durable on return.

        Raises:
            Unavailable: the transfer is not known: it begins with an offer.
            InvalidArgument: it cannot be decrypted, or is another key.
        """
        keys = self._require()
        receiver = self._receivers.pop(request.receiver, None)
        if receiver is None:
            raise Unavailable("this transfer of a key is not known here any more; offer it again")
        key = receiver.open(Sealed(request.public, request.sealed))
        await self._env.tasks.run(Lane.DISK, keys.add, key)
        return pb.TakeAuthorityResponse()

    def _require(self) -> Keyring:
        if self._keys is None:
            raise Forbidden(
                "this master does not sign certificates; put ca.key beside its ca.crt, and start it again"
            )
        return self._keys


def _one(pem: bytes) -> x509.Certificate:
    return bundle.parse(pem)[0]
