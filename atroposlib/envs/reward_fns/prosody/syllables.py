"""Verses as lines of light (L) and heavy (G) syllables, from Devanagari or IAST.

A syllable is heavy if its vowel is long, or if anusvara, visarga or more than one consonant follows before the next
vowel, across words; the last one of a line counts as it is written.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from typing import Final

_SHORT: Final = "aiuṛḷ"
_LONG: Final = "āīūṝḹeo"
_TOKEN: Final = re.compile(
    rf"(?P<vowel>ai|au|[{_SHORT}{_LONG}])|(?P<mark>[ṃṁḥ])|(?P<consonant>[kgcjṭḍtdpb]h|[kgṅcjñṭḍṇtdnpbmyrlvśṣsh])"
)
_LINE_END: Final = re.compile(r"[\n|।॥/;]+")

_CONSONANTS: Final = dict(
    zip(
        "कखगघङचछजझञटठडढणतथदधनपफबभमयरलवशषसह",
        "k,kh,g,gh,ṅ,c,ch,j,jh,ñ,ṭ,ṭh,ḍ,ḍh,ṇ,t,th,d,dh,n,p,ph,b,bh,m,y,r,l,v,ś,ṣ,s,h".split(","),  # noqa: SIM905
        strict=True,
    )
)
_LATIN_VOWELS: Final = ("a", "ā", "i", "ī", "u", "ū", "ṛ", "ṝ", "ḷ", "e", "ai", "o", "au")
_VOWELS: Final = dict(zip("अआइईउऊऋॠऌएऐओऔ", _LATIN_VOWELS, strict=True))
_SIGNS: Final = dict(zip("ािीुूृॄॢेैोौ", _LATIN_VOWELS[1:], strict=True))
_MARKS: Final = {"ं": "ṃ", "ँ": "ṃ", "ः": "ḥ", "ऽ": ""}
_VIRAMA: Final = "्"


def weights(text: str) -> list[str]:
    """One string of L and G for each line (or part between dandas) that has syllables."""
    lines = (_weights_of(line) for line in _LINE_END.split(as_iast(text)))
    return [line for line in lines if line]


def as_iast(text: str) -> str:
    """Devanagari in Latin letters with diacritics; everything else in lower case as it is."""
    found: list[str] = []
    characters = [*unicodedata.normalize("NFC", text).lower(), " "]
    for character, following in itertools.pairwise(characters):
        if character in _CONSONANTS:
            inherent = "" if following == _VIRAMA or following in _SIGNS else "a"
            found.append(_CONSONANTS[character] + inherent)
        elif character != _VIRAMA:
            found.append(_VOWELS.get(character) or _SIGNS.get(character) or _MARKS.get(character, character))
    return "".join(found)


def _weights_of(line: str) -> str:
    found: list[str] = []
    long = False
    consonants = 0
    for token in [*_TOKEN.finditer(line), None]:
        if token is not None and token["consonant"]:
            consonants += 1
        elif token is not None and token["mark"]:
            long = True
        else:
            if found:
                found[-1] = "G" if long or consonants > 1 else "L"
            if token is not None:
                found.append("L")
                long, consonants = token["vowel"] not in _SHORT, 0
    return "".join(found)
