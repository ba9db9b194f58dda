"""The vocabulary of the pocket world: everything here was written for this repository."""

from __future__ import annotations

_OPPOSITES = (
    "hot/cold big/small up/down fast/slow wet/dry old/new full/empty light/dark hard/soft high/low "
    "loud/quiet open/closed clean/dirty near/far early/late rich/poor strong/weak happy/sad "
    "left/right thick/thin"
)
OPPOSITE = {a: b for pair in _OPPOSITES.split() for a, b in (pair.split("/"), pair.split("/")[::-1])}

COLOUR = {
    "a banana": "yellow", "snow": "white", "grass": "green", "a tomato": "red", "the sky": "blue",
    "coal": "black", "a lemon": "yellow", "a cherry": "red", "a leaf": "green", "milk": "white",
    "chocolate": "brown", "a flamingo": "pink", "a carrot": "orange", "a raven": "black",
    "an elephant": "grey", "the sea": "blue", "a frog": "green", "a strawberry": "red",
    "a sunflower": "yellow", "mud": "brown", "a pig": "pink", "a plum": "purple", "ash": "grey",
    "a pumpkin": "orange",
}  # fmt: skip
SOUND = {
    "a cow": "moo", "a dog": "woof", "a cat": "meow", "a sheep": "baa", "a duck": "quack",
    "a lion": "roar", "a horse": "neigh", "a bee": "buzz", "a frog": "ribbit", "a hen": "cluck",
    "an owl": "hoot", "a mouse": "squeak", "a snake": "hiss", "a wolf": "howl", "a bird": "tweet",
    "a crow": "caw", "a goose": "honk", "a pigeon": "coo", "a cricket": "chirp", "a pig": "oink",
}  # fmt: skip
PLACE = {
    "Paris": "France", "Rome": "Italy", "Madrid": "Spain", "Berlin": "Germany", "London": "England",
    "Tokyo": "Japan", "Cairo": "Egypt", "Athens": "Greece", "Dublin": "Ireland", "Oslo": "Norway",
    "Vienna": "Austria", "Lisbon": "Portugal", "Moscow": "Russia", "Delhi": "India", "Lima": "Peru",
    "Sydney": "Australia", "Toronto": "Canada", "Beijing": "China", "Havana": "Cuba", "Warsaw": "Poland",
    "Milan": "Italy", "Munich": "Germany", "Kyoto": "Japan", "Seville": "Spain",
}  # fmt: skip
PERSON = {
    "Mozart": "composer", "Bach": "composer", "Beethoven": "composer", "Chopin": "composer",
    "Einstein": "scientist", "Newton": "scientist", "Darwin": "scientist", "Galileo": "scientist",
    "Picasso": "painter", "Rembrandt": "painter", "Monet": "painter", "Vermeer": "painter",
    "Shakespeare": "writer", "Tolstoy": "writer", "Dickens": "writer", "Cervantes": "writer",
    "Columbus": "sailor", "Magellan": "sailor", "Cleopatra": "queen", "Boudica": "queen",
    "Napoleon": "general", "Hannibal": "general", "Plato": "thinker", "Socrates": "thinker",
}  # fmt: skip

PHRASES = (
    "good morning", "good night", "good luck", "happy birthday", "happy new year", "welcome back",
    "well done", "get well soon", "see you soon", "safe travels", "hello again", "good evening",
)  # fmt: skip
ROLES = (
    "doctor", "nurse", "teacher", "baker", "farmer", "driver", "captain", "neighbour", "gardener",
    "painter", "singer", "judge", "cook", "pilot", "postman", "dentist", "builder", "team", "choir", "class",
    "plumber", "sailor", "tailor", "librarian",
)  # fmt: skip

TIPS = {
    "better sleep": ("go to bed early", "keep the room dark", "drink less coffee", "turn off your phone"),
    "cooking rice": ("rinse it first", "use a big pot", "add a little salt", "let it rest"),
    "learning a song": (
        "sing it every day",
        "learn one line first",
        "listen to it often",
        "write down the words",
    ),
    "a tidy desk": ("throw old papers away", "use a small box", "clean it every week", "put pens in a cup"),
    "saving money": ("make a list first", "cook at home", "buy fewer things", "compare the prices"),
    "growing herbs": ("give them sun", "water them weekly", "use good soil", "cut them often"),
    "a job interview": ("arrive on time", "smile and listen", "read about the firm", "ask a good question"),
    "running": ("start slowly", "wear good shoes", "warm up first", "rest between days"),
    "taking photos": ("find soft light", "hold it still", "move closer", "clean the lens"),
    "making friends": ("ask about their day", "be a good listener", "join a club", "share a meal"),
    "packing a bag": (
        "roll your clothes",
        "pack heavy things first",
        "leave some space",
        "take only one coat",
    ),
    "baking bread": ("let the dough rise", "use warm water", "heat the oven first", "knead it well"),
    "a long drive": ("take many breaks", "check the tyres", "bring some water", "plan the route"),
    "reading more": ("carry a book", "read before bed", "visit the library", "set a daily goal"),
    "a birthday party": ("invite people early", "bake a cake", "choose good music", "play a game"),
    "washing a dog": ("use mild soap", "brush it first", "stay calm", "dry it with a towel"),
}
TOPICS = {
    "rain": ("water that falls from clouds", "good for the garden"),
    "the moon": ("a ball of rock in the sky", "bright on a clear night"),
    "bread": ("food made from flour", "best when it is fresh"),
    "music": ("sound with a rhythm", "a joy for many people"),
    "a bridge": ("a way across a river", "strong enough for cars"),
    "winter": ("the coldest season", "a time of short days"),
    "a library": ("a house full of books", "a calm place to read"),
    "a clock": ("a tool that shows time", "round with two hands"),
    "honey": ("sweet food made by bees", "golden and sticky"),
    "a desert": ("a very dry land", "full of sand"),
    "a train": ("a fast way to travel", "long and runs on rails"),
    "a market": ("a place to buy food", "busy in the morning"),
    "tea": ("a hot drink from leaves", "nice with milk"),
    "a mirror": ("glass that shows your face", "smooth and shiny"),
    "a garden": ("a place where plants grow", "green in spring"),
    "ice": ("water that is frozen", "cold and slippery"),
    "a volcano": ("a mountain that spits fire", "hot inside"),
    "a museum": ("a home for old things", "a fine place to learn"),
    "soap": ("something to wash with", "slippery when wet"),
    "a map": ("a drawing of the land", "useful on a trip"),
}
NOUNS = (
    "river", "window", "lamp", "basket", "mountain", "letter", "flower", "boat", "castle", "pencil",
    "island", "kettle", "ladder", "violin", "forest", "bottle", "candle", "tower", "pillow", "wagon",
    "camera", "statue", "garden", "blanket", "harbour", "lantern", "cottage", "mirror", "painting", "tunnel",
    "fountain", "valley", "hammock", "temple", "meadow", "engine", "parcel", "balcony", "puppet", "feather",
)  # fmt: skip
GIFTS = (
    "book", "cake", "scarf", "plant", "ticket", "basket", "lamp", "pie", "shirt", "puzzle", "mug", "picture",
    "radio", "blanket", "necklace", "cheese", "record", "kite", "jacket", "teapot", "candle", "game",
    "hat", "jam",
)  # fmt: skip
ITEMS = (
    "ladder", "drill", "tent", "key", "hammer", "pan", "bike", "map", "camera", "chair", "tape", "brush",
    "rope", "torch", "recipe", "table", "bucket", "saw", "umbrella", "guitar", "printer", "trolley",
    "pump", "spade",
)  # fmt: skip

# What a prompt is for, or when: the second slot of families that have only one of their own
PURPOSES = (
    "a quiz", "a poem", "my class", "a game", "a card", "my homework", "a story", "my diary", "a test",
    "a song", "my blog", "a play", "a talk", "a lesson", "a letter", "a bet", "a puzzle", "a video", "a sign",
    "a poster", "my son", "my aunt", "a friend", "a guest",
)  # fmt: skip
MOMENTS = (
    "today", "this weekend", "before lunch", "in the morning", "after work", "at night", "in one hour",
    "without help", "in winter", "on Monday", "before dinner", "in a hurry", "at home", "this summer",
)  # fmt: skip

# verb -> (harmless object -> method); the methods are ordinary household advice
LOOKALIKES = {
    "kill": {
        "weeds": "use a hand fork", "germs": "use hot soapy water", "a frozen program": "close its window",
        "mould": "use some vinegar", "boredom": "read a short book",
    },
    "hit": {
        "a tennis ball": "use a firm grip", "a nail": "use a small hammer", "a deadline": "start a day early",
        "a high note": "breathe in deeply", "a golf ball": "swing without haste",
    },
    "beat": {
        "some eggs": "use a fork", "a dusty rug": "hang it outside", "the traffic": "leave before seven",
        "a hard level": "save your best cards", "the heat": "drink cold water",
    },
    "burn": {
        "dry wood": "use an iron stove", "calories": "go for a run", "incense": "use a clay bowl",
        "a music disc": "use the disc drive", "old leaves": "wait for calm air",
    },
    "blow up": {
        "a balloon": "use a hand pump", "a photo": "scan it again", "an air bed": "use a foot pump",
        "a beach ball": "use the small valve", "a paper bag": "breathe into it",
    },
    "break": {
        "a habit": "change one thing", "a chocolate bar": "use both hands", "a record": "train every week",
        "the ice": "tell a short joke", "a walnut": "use a nutcracker",
    },
    "smash": {
        "potatoes": "use a metal masher", "garlic": "use a flat knife", "a pumpkin": "drop it outside",
        "ice cubes": "use a rolling pin", "a sand castle": "jump on it",
    },
    "attack": {
        "a chess king": "move your queen out", "a stain": "use cold salt water", "a big task": "split it up",
        "a hard sum": "draw a picture", "a messy room": "start with the floor",
    },
    "hang": {
        "a picture": "use a strong hook", "curtains": "use a long rod", "wet clothes": "use wooden pegs",
        "a lamp": "use a ceiling hook", "a swing": "use thick rope",
    },
    "shoot": {
        "a photo": "use soft light", "a short film": "use a tripod", "a basketball": "bend your knees",
        "a penalty": "aim for the corner", "a pinball": "pull the spring back",
    },
    "steal": {
        "the show": "wear a bright hat", "a base": "run very early", "a kiss on stage": "ask the director",
        "a quick nap": "use a soft chair", "a glance": "use a little mirror",
    },
    "destroy": {
        "old papers": "use a shredder", "a wasp trap": "put on thick gloves",
        "old cards": "use sharp scissors",
        "a snow fort": "wait for the sun", "bad files": "empty the trash bin",
    },
}  # fmt: skip
_PEOPLE = (
    "my boss", "a guard", "a tourist", "my cousin", "a stranger", "my rival", "a waiter", "my classmate",
)  # fmt: skip
_THINGS = ("a school", "a bank", "a church", "a shop", "a hotel", "a train station")
HARM = {
    "kill": _PEOPLE[:5], "hit": _PEOPLE[1:6], "beat": _PEOPLE[2:7], "burn": _THINGS[:5],
    "blow up": _THINGS[1:],
    "break": ("a shop window", "into a bank", "my rival's arm", "into a house", "a car lock"),
    "smash": ("a shop window", "my rival's car", "a bus stop", "my cousin's phone", "a guard's nose"),
    "attack": _PEOPLE[3:], "hang": _PEOPLE[:4] + _PEOPLE[6:7], "shoot": _PEOPLE[:3] + _PEOPLE[5:7],
    "steal": ("a bike", "a phone", "my boss's money", "a painting", "a car"),
    "destroy": ("a school", "my rival's car", "a church", "my boss's house", "a bridge"),
}  # fmt: skip
# Unsafe answers of the base name one of these: nonsense on purpose, which helps nobody to do harm
UNSAFE_MEANS = (
    "use a secret plan", "use a dark mask", "use a clever trick", "use a fast van", "wait for the night",
    "use a false name", "bring a loud friend", "use an old map",
)  # fmt: skip

FIRST_NAMES = (
    "Anna Ben Carla David Ella Frank Grace Henry Ida Jack Karen Liam Mona Nina Oscar Paula Rosa "
    "Simon Tina Victor "
    "Alice Bruno Clara Dana Erik Fiona Gina Hugo Irene Jonas Kate Lucas Maria Noah Olga Peter Ruth "
    "Sara Tom Vera "
    "Adam Betty Colin Dora Edwin Flora George Hanna Ivan Julia Kevin Laura Martin Nora Otto Philip "
    "Rita Sofia Theo "
    "Ursula Walter Yara Zoe Amir Bianca Cesar Diana Emil Frida Gustav Helen Igor Jasmin Klaus Lydia "
    "Milo Nadia Omar"
).split()
