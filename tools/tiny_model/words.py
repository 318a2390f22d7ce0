"""The vocabulary of the story world: who, where, what and when.

Everything here is our own text.  The lists are combined freely by :mod:`tools.tiny_model.stories`.
"""

from __future__ import annotations

from dataclasses import dataclass

GIRLS = (
    "Mia", "Lily", "Nora", "Ella", "Ruby", "Ivy", "Rosa", "Tilly", "Hazel", "Clara", "Zoe", "Anna",
)  # fmt: skip
BOYS = (
    "Tom", "Ben", "Max", "Leo", "Oscar", "Finn", "Sam", "Jack", "Milo", "Theo", "Otto", "Felix",
)  # fmt: skip
KINDS = (
    "rabbit", "fox", "bear", "mouse", "hedgehog", "duck", "cat", "frog", "badger", "squirrel",
    "goat", "turtle",
)  # fmt: skip
TRAITS = (
    "curious", "brave", "gentle", "clever", "cheerful", "patient", "kind", "quiet", "playful",
    "careful",
)  # fmt: skip
COLORS = ("red", "blue", "green", "yellow", "white", "golden", "purple", "silver")
TREASURES = (
    "kite", "ball", "scarf", "lantern", "drum", "boat", "hat", "bell", "key", "book", "cup",
    "umbrella", "flute", "basket", "whistle", "blanket",
)  # fmt: skip
FOODS = (
    "honey cake", "apple pie", "carrot soup", "berry jam", "nut bread", "plum tart",
    "pumpkin soup", "cheese roll",
)  # fmt: skip
SEEDS = ("sunflower", "pumpkin", "bean", "tulip", "melon", "rose")
WEATHER = ("windy", "sunny", "cloudy", "cold", "warm", "rainy", "misty", "bright")
TIMES = ("morning", "afternoon", "evening")
SEASONS = ("spring", "summer", "autumn", "winter")
ELDERS = ("grandmother", "grandfather", "mother", "father", "aunt", "uncle")


@dataclass(frozen=True)
class Place:
    """A place of the world: its name and the preposition for standing there."""

    name: str
    at: str


PLACES = (
    Place("the old mill", "at"),
    Place("the quiet lake", "by"),
    Place("the dark forest", "in"),
    Place("the tall hill", "on"),
    Place("the stone bridge", "on"),
    Place("the village market", "at"),
    Place("the apple garden", "in"),
    Place("the sandy beach", "on"),
    Place("the wide meadow", "in"),
    Place("the empty barn", "in"),
    Place("the little river", "by"),
    Place("the railway station", "at"),
)
HIDING_SPOTS = (
    "under a bench", "behind a big stone", "in a hollow tree", "inside an old boot",
    "on top of a fence", "between two bushes", "under a pile of leaves", "next to a well",
)  # fmt: skip
THIEVES = ("a magpie", "the wind", "a sleepy crow", "a playful puppy", "a young goat")
SOUNDS = (
    ("a long hoot", "an owl who wanted some company"),
    ("a soft tapping", "a woodpecker building a nest"),
    ("a low rumble", "a cart full of potatoes"),
    ("a strange whistle", "the wind in an empty bottle"),
    ("a quick scratching", "a mole who had lost the way home"),
    ("a deep snore", "an old dog asleep in the straw"),
)
TOOLS = (
    ("rope", "a piece of rope"),
    ("glue", "a pot of glue"),
    ("needle", "a needle and some thread"),
    ("hammer", "a small hammer"),
    ("ladder", "a wooden ladder"),
    ("ribbon", "a strong ribbon"),
)
SMALL_ONES = ("kitten", "lamb", "sparrow", "puppy", "duckling", "piglet")
TRAPS = (
    "in a thorny bush", "in a deep hole", "on a high branch", "under a fallen gate",
    "in the thick mud", "on a tiny island",
)  # fmt: skip
GIFTS = ("a shiny button", "a smooth pebble", "a bright feather", "a sea shell", "a glass bead")
GAMES = ("a race", "hide and seek", "a singing game", "a jumping game", "a guessing game")
