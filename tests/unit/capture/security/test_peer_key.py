"""Peer keys: proofs of one key, while keys are changed."""

from cryptography.fernet import Fernet

from capture.security.peer_key import PeerKey, Side, Terms, new_nonce


def test_a_key_that_was_removed_since_the_greeting_proves_nothing() -> None:
    old, new = Fernet.generate_key(), Fernet.generate_key()
    both, later = PeerKey([old, new], cluster="c"), PeerKey([new], cluster="c")
    terms = Terms("a", "b", 1, 1, (1, 1), new_nonce(), new_nonce())
    proof = both.proof(both.id, Side.CLIENT, terms)
    assert both.is_proof(proof, both.id, Side.CLIENT, terms)
    assert not later.is_proof(proof, both.id, Side.CLIENT, terms)
    assert not both.is_proof(proof, both.id, Side.SERVER, terms)
