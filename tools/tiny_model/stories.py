"""A seeded generator of small stories with characters, memory, cause and effect, and dialogue.

A story has a hero with a treasure, a friend, one to four episodes, and an ending that recalls what
happened.  The recall is deliberate: names, colours and deeds must be carried over hundreds of
tokens, further than the sliding window of the model that is trained on them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tools.tiny_model import words
from tools.tiny_model.words import Place


@dataclass(frozen=True)
class Person:
    """A character: name, animal kind, and the pronouns that go with it."""

    name: str
    kind: str
    he: str
    him: str
    his: str

    @property
    def He(self) -> str:  # noqa: N802
        """The subject pronoun at the start of a sentence."""
        return self.he.capitalize()


@dataclass
class World:
    """What is true in one story: who takes part, what they own, where they are, what happened."""

    rng: random.Random
    hero: Person
    friend: Person
    elder: str
    treasure: str
    here: Place
    deeds: list[str] = field(default_factory=list)

    def pick(self, *options: str) -> str:
        """One of the given wordings."""
        return self.rng.choice(options)

    def elsewhere(self) -> Place:
        """Move to a place that is not the present one, and return it."""
        self.here = self.rng.choice([p for p in words.PLACES if p != self.here])
        return self.here


@dataclass(frozen=True)
class Story:
    """One story: the request that a reader would make for it, its title and its text."""

    request: str
    title: str
    text: str


def article(phrase: str) -> str:
    """The phrase with the indefinite article that fits its first sound."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def _person(rng: random.Random, taken: set[str]) -> Person:
    girl = rng.random() < 0.5
    name = rng.choice([n for n in (words.GIRLS if girl else words.BOYS) if n not in taken])
    kind = rng.choice([k for k in words.KINDS if k not in taken])
    taken.update((name, kind))
    return Person(name, kind, *(("she", "her", "her") if girl else ("he", "him", "his")))


def _lost(w: World) -> str:
    h, f, t = w.hero, w.friend, w.treasure
    lost_at = w.here
    first, found = w.elsewhere(), w.elsewhere()
    spot, thief = w.rng.choice(words.HIDING_SPOTS), w.rng.choice(words.THIEVES)
    w.deeds.append(f"how the {t} was lost and found again {spot}")
    looked = w.pick(
        f"{h.He} looked {first.at} {first.name}, but it was not there.",
        f"First {h.he} searched {first.at} {first.name}, but found nothing.",
        f"{h.He} went to {first.name} and looked everywhere, but it was not there.",
    )
    return (
        w.pick(
            f"But {lost_at.at} {lost_at.name}, {h.name} saw that the {t} was gone.",
            f"Suddenly the {t} was missing.",
            f"When {h.name} looked around, the {t} was nowhere to be seen.",
        )
        + w.pick(
            f' "Oh no, where is my {t}?" cried {h.name}. ',
            f' "I have lost my {t}!" said {h.name} sadly. ',
        )
        + looked
        + w.pick(
            f' Then {f.name} came by. "I will help you," said {f.name}. ',
            f' {f.name} heard this and said, "Do not cry. Two can look better than one." ',
        )
        + f"Together they walked to {found.name}, and there it was, {spot}. "
        + w.pick(
            f"{thief.capitalize()} had carried it there.",
            f"It was {thief} that had taken it so far away.",
        )
        + w.pick(
            f" {h.name} hugged {f.name} and promised to be more careful.",
            f" {h.name} was so happy that {h.he} danced in a circle.",
        )
    )


def _broken(w: World) -> str:
    h, f, t = w.hero, w.friend, w.treasure
    tool, tool_phrase = w.rng.choice(words.TOOLS)
    place = w.elsewhere()
    w.deeds.append(f"how {f.name} mended the {t} with {tool_phrase}")
    return (
        w.pick(
            f"On the way to {place.name}, {h.name} tripped over a root and the {t} broke.",
            f"{place.at.capitalize()} {place.name}, the {t} fell on a stone and broke.",
        )
        + w.pick(
            f' "It is my own fault," said {h.name}, "because I was running too fast."',
            f" {h.name} felt sorry, because it was {h.his} favorite thing.",
        )
        + w.pick(
            f" {f.name} thought for a while. ",
            f" {f.name} looked at the pieces and smiled. ",
        )
        + f'"I have {tool_phrase} at home," {f.he} said, and ran to get it. '
        + w.pick(
            f"They worked slowly, and with the {tool} they made the {t} whole again.",
            f"With the {tool} the work was easy, and soon the {t} was as good as new.",
        )
        + w.pick(
            f' "Thank you," said {h.name}. "You are a real friend."',
            f' "It looks even better than before," said {h.name}.',
        )
    )


def _storm(w: World) -> str:
    h, f = w.hero, w.friend
    place, shelter = w.here, w.elsewhere()
    w.deeds.append(f"how the storm came and they hid {shelter.at} {shelter.name}")
    return (
        w.pick(
            f"Then dark clouds came over {place.name}, and it began to rain.",
            "All at once the sky turned black, and thunder rolled over the land.",
        )
        + w.pick(
            f' "We must find a dry place," said {f.name}.',
            f' "Quick, follow me!" called {h.name}.',
        )
        + f" They ran as fast as they could and hid {shelter.at} {shelter.name}. "
        + w.pick(
            f"{h.name} was afraid of the thunder, so {f.name} told a funny story about a fish.",
            f"{f.name} was cold, so {h.name} held {f.his} paw until {f.he} felt warm.",
            f"They counted the seconds after every flash, and so {h.name} was not afraid.",
        )
        + w.pick(
            " After an hour the rain stopped, and a rainbow stood in the sky.",
            " Little by little the storm moved away, and the sun came back.",
        )
    )


def _rescue(w: World) -> str:
    h, f, t = w.hero, w.friend, w.treasure
    small, trap = w.rng.choice(words.SMALL_ONES), w.rng.choice(words.TRAPS)
    tool, tool_phrase = w.rng.choice(words.TOOLS)
    gift, place = w.rng.choice(words.GIFTS), w.elsewhere()
    w.deeds.append(f"how they saved a little {small} that was stuck {trap}")
    return (
        w.pick(
            f"{place.at.capitalize()} {place.name} they heard someone crying.",
            f"When they came to {place.name}, a small voice called for help.",
        )
        + f" It was a little {small}, and it was stuck {trap}. "
        + w.pick(
            f'"Please help me," said the {small}.',
            f'"I cannot get out," said the {small}.',
        )
        + w.pick(
            f" {h.name} put down the {t} and fetched {tool_phrase}.",
            f" {f.name} ran home and came back with {tool_phrase}.",
        )
        + f" With the {tool} they pulled until the {small} was free. "
        + w.pick(
            f'"You are so kind," said the {small}, and gave them {gift}.',
            f"The {small} thanked them and gave {h.name} {gift}.",
        )
    )


def _share(w: World) -> str:
    h, f = w.hero, w.friend
    food, place = w.rng.choice(words.FOODS), w.elsewhere()
    w.deeds.append(f"how {h.name} shared the {food} {place.at} {place.name}")
    return (
        w.pick(
            f"By noon they were hungry, so they sat down {place.at} {place.name}.",
            f"After a long walk they rested {place.at} {place.name}.",
        )
        + f" {h.name} had brought some {food}, but {f.name} had nothing to eat. "
        + w.pick(
            f'"Half of it is for you," said {h.name}.',
            f'"There is enough for two," said {h.name}.',
        )
        + w.pick(
            f" {f.name} ate slowly, because it tasted so good.",
            f' "This is the best {food} in the whole world," said {f.name}.',
        )
        + w.pick(
            f" From that day on, {f.name} always kept a place at the table for {h.name}.",
            f" A sad old {w.pick('crow', 'donkey')} came by, and they gave it the last piece.",
        )
    )


def _sound(w: World) -> str:
    h, f, t = w.hero, w.friend, w.treasure
    (sound, source), place = w.rng.choice(words.SOUNDS), w.elsewhere()
    w.deeds.append(f"how {sound} {place.at} {place.name} was only {source}")
    return (
        w.pick(
            f"{place.at.capitalize()} {place.name} it was very dark.",
            f"Later they passed {place.name}, where nobody liked to go.",
        )
        + f" They heard {sound}. "
        + w.pick(
            f'"What if it is a monster?" whispered {f.name}.',
            f'"Let us run away," whispered {f.name}.',
        )
        + w.pick(
            f" But {h.name} took a deep breath and went closer.",
            f" {h.name} was afraid too, but {h.he} held the {t} tight and went on.",
        )
        + f" It was only {source}. "
        + w.pick(
            "They both laughed, because there was nothing to fear.",
            f'"Things are only scary until you know them," said {h.name}.',
        )
    )


def _seed(w: World) -> str:
    h, f = w.hero, w.friend
    seed, place, days = w.rng.choice(words.SEEDS), w.elsewhere(), w.pick("three", "five", "seven")
    w.deeds.append(f"how they planted a {seed} seed {place.at} {place.name}")
    return (
        f"{f.name} found a {seed} seed in {f.his} pocket. "
        + w.pick(
            f'"Let us plant it {place.at} {place.name}," said {h.name}.',
            f"They carried it to {place.name} and dug a little hole.",
        )
        + w.pick(
            f" Every day {h.name} gave it water, and {f.name} kept the birds away.",
            f" {h.name} wanted to see it grow at once, but {f.name} said that seeds need time.",
        )
        + f" After {days} days a green leaf came out of the ground. "
        + w.pick(
            f'"It was worth the wait," said {h.name}.',
            "They were so proud that they showed it to everyone.",
        )
    )


def _game(w: World) -> str:
    h, f = w.hero, w.friend
    game, place = w.rng.choice(words.GAMES), w.elsewhere()
    first, second = (h, f) if w.rng.random() < 0.5 else (f, h)
    w.deeds.append(f"how {first.name} won {game} {place.at} {place.name}")
    return (
        w.pick(
            f'"Let us play {game} {place.at} {place.name}," said {f.name}.',
            f"{place.at.capitalize()} {place.name} they decided to play {game}.",
        )
        + w.pick(
            f" {second.name} was good at it, but {first.name} was even better and won.",
            f" {first.name} won, because {first.he} had practiced all week.",
        )
        + w.pick(
            f' "Well done," said {second.name}, and was not angry at all.',
            f" {second.name} was a little sad, so {first.name} taught {second.him} a trick.",
        )
    )


EPISODES: tuple[Callable[[World], str], ...] = (
    _lost, _broken, _storm, _rescue, _share, _sound, _seed, _game,
)  # fmt: skip


def _opening(w: World, trait: str) -> str:
    rng, h, f, place = w.rng, w.hero, w.friend, w.here
    weather, time, season = (rng.choice(x) for x in (words.WEATHER, words.TIMES, words.SEASONS))
    wanted = w.pick("show it to everyone", "visit a friend", "see the world", "find an adventure")
    return (
        w.pick(
            f"Once upon a time there was {article(trait)} {h.kind} called {h.name}.",
            f"{h.name} was {article(trait)} {h.kind} who lived near {place.name}.",
            f"One {weather} {time} in {season}, {article(trait)} {h.kind} called {h.name}"
            " woke up early.",
        )
        + w.pick(
            f" {h.He} had {article(w.treasure)}, a present from {h.his} {w.elder}.",
            f" {h.his.capitalize()} {w.elder} had given {h.him} {article(w.treasure)}.",
        )
        + w.pick(
            f" {h.name} took it along to {place.name}, because {h.he} wanted to {wanted}.",
            f" One day {h.he} took it to {place.name}, because {h.he} wanted to {wanted}.",
        )
        + w.pick(
            f" There {h.he} met {f.name} the {f.kind}.",
            f" {f.name} the {f.kind} was already there and waved.",
            f' "Good {time}," said {f.name} the {f.kind}.',
        )
    )


def _ending(w: World) -> str:
    h, f = w.hero, w.friend
    told = w.deeds[0] if len(w.deeds) == 1 else ", ".join(w.deeds[:-1]) + ", and " + w.deeds[-1]
    return (
        w.pick(
            f"When the stars came out, {h.name} went home with the {w.treasure}.",
            f"In the evening {h.name} and {f.name} walked home together.",
        )
        + f" {h.name} told {h.his} {w.elder} {told}. "
        + w.pick(
            f'"What a day," said {h.his} {w.elder}.',
            f'"I am proud of you," said {h.his} {w.elder}.',
            f'"{f.name} is a good friend," said {h.his} {w.elder}.',
        )
        + w.pick(
            f" Then {h.name} the {h.kind} fell asleep.",
            f" And {h.name} the {h.kind} put the {w.treasure} next to the bed and slept.",
            f" The next morning {h.name} the {h.kind} and {f.name} the {f.kind} met again.",
        )
    )


def _request(w: World, trait: str) -> str:
    h, f = w.hero, w.friend
    subject = w.pick(
        f"{article(h.kind)}",
        f"{article(trait)} {h.kind}",
        f"{h.name}",
        f"{h.name} the {h.kind}",
        f"{h.name} and {f.name}",
        f"{article(w.treasure)}",
        f"{h.name} and {article(w.treasure)}",
        f"{article(h.kind)} and {article(w.treasure)}",
        f"{article(h.kind)} and {article(f.kind)}",
    )
    return w.pick(
        f"Tell me a story about {subject}.",
        f"Write a story about {subject}.",
        f"Please tell a story about {subject}.",
        f"A story about {subject}, please.",
        f"Can you tell me a story about {subject}?",
        f"{subject[0].upper()}{subject[1:]}",
        "Tell me a story.",
        "Hello!",
    )


def make_story(rng: random.Random) -> Story:
    """One story; the same state of ``rng`` always gives the same story."""
    taken: set[str] = set()
    hero, friend = _person(rng, taken), _person(rng, taken)
    treasure = f"{rng.choice(words.COLORS)} {rng.choice(words.TREASURES)}"
    trait = rng.choice(words.TRAITS)
    w = World(rng, hero, friend, rng.choice(words.ELDERS), treasure, rng.choice(words.PLACES))
    paragraphs = [_opening(w, trait)]
    for episode in rng.sample(EPISODES, rng.choice((1, 2, 2, 3, 3, 4))):
        paragraphs.append(episode(w))
    paragraphs.append(_ending(w))
    return Story(
        request=_request(w, trait),
        title=f"{hero.name} and the {treasure.title()}",
        text="\n\n".join(paragraphs),
    )


def stories(seed: int) -> Iterator[Story]:
    """An endless stream of stories, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield make_story(rng)
