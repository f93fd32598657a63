"""The wording of the corpus on which `tiny` is pre-trained (tiny_corpus.py)."""

# A question about a scene: how it can be asked, the names of its classes, and how a class is put in
# words. The names in one row of `NAMINGS` stand in the order of `CONDITIONS`.
QUESTIONS = {
    "opinion": (
        "How does the writer feel about it?",
        "Which word sums up the opinion?",
        "Judge the mood of the text.",
        "What does the speaker think?",
        "Is this a good or a bad experience?",
        "Rate the review.",
    ),
    "subject": (
        "What is this about?",
        "Which field does the text belong to?",
        "Sort the text into a group.",
        "Choose the fitting category.",
        "Which heading suits it best?",
        "Name the area of life.",
    ),
    "setting": (
        "What kind of place is it?",
        "Where are they?",
        "Is there a roof over them?",
        "Choose the setting.",
        "Describe the surroundings with one word.",
        "What is around the person?",
    ),
    "tense": (
        "When is the action?",
        "Which form does the verb have?",
        "Is it over?",
        "Tell the tense.",
    ),
    "calendar": (
        "What kind of time is given?",
        "How is the time expressed?",
        "Choose the kind of date.",
    ),
    "start": (
        "What does the text begin with?",
        "What stands in front?",
        "Name the kind of the opening words.",
    ),
    "claim": (
        "Check the claim.",
        "Compare the claim with the text.",
        "Can the claim be trusted?",
        "Judge the statement.",
        "Is the claim backed by the text?",
        "Do text and claim match?",
    ),
    "person": (
        "Do both mention one person?",
        "Compare the people.",
        "Is the person still the one from before?",
    ),
}
NAMINGS = {
    "opinion": (
        ("good", "bad"),
        ("happy", "unhappy"),
        ("pleased", "upset"),
        ("praise", "complaint"),
        ("plus", "minus"),
        ("like", "dislike"),
        ("keen", "sour"),
        ("fan", "critic"),
        ("warm", "cold"),
    ),
    "subject": (
        ("meals", "songs", "games", "trips"),
        ("cuisine", "sounds", "athletics", "tourism"),
        ("eating", "listening", "competing", "touring"),
        ("cook", "musician", "athlete", "tourist"),
        ("plate", "guitar", "ball", "suitcase"),
        ("taste", "ear", "muscle", "map"),
    ),
    "setting": (
        ("inside", "outside"),
        ("building", "nature"),
        ("room", "landscape"),
        ("covered", "open"),
        ("walls", "sky"),
        ("interior", "exterior"),
        ("house", "country"),
    ),
    "tense": (("present", "past"), ("now", "then"), ("today", "earlier"), ("ongoing", "done")),
    "calendar": (
        ("weekday", "clock", "meal", "season", "month"),
        ("day", "hour", "dish", "weather", "date"),
    ),
    "start": (("person", "place", "time"), ("who", "where", "when"), ("human", "spot", "moment")),
    "claim": (
        ("true", "false"),
        ("right", "wrong"),
        ("correct", "incorrect"),
        ("valid", "invalid"),
        ("fits", "clashes"),
        ("supported", "refuted"),
        ("sure", "never"),
    ),
    "person": (("same", "different"), ("equal", "unequal"), ("one", "two"), ("match", "mismatch")),
}
CONDITIONS = {
    "opinion": ("the writer liked it", "the writer hated it"),
    "subject": (
        "it is something to eat",
        "it is something to hear",
        "it is something to compete in",
        "one goes away",
    ),
    "setting": ("there are walls around", "they are in the open air"),
    "tense": ("it happens now", "it is over"),
    "calendar": (
        "a day is named",
        "an hour is named",
        "a meal is named",
        "a season is named",
        "a month is named",
    ),
    "start": ("a person comes first", "a place comes first", "a time comes first"),
    "claim": ("the claim is sound", "the claim is made up"),
    "person": ("the person is kept", "the person changes"),
}
# Words without a meaning for the questions, for answers that only the prompt defines.
CODES = (
    "red", "blue", "green", "black", "white", "orange", "cat", "dog", "horse", "fish", "bird",
    "lion", "iron", "gold", "wood", "glass", "paper", "stone", "north", "south", "east", "west",
    "alpha", "beta", "gamma", "delta", "king", "queen", "left", "up", "down", "chair", "table",
    "lamp", "river", "star", "moon", "sun", "leaf", "key",
)  # fmt: skip
EXTRACTIONS = {
    "name": ("Who is it?", "Name the person.", "Which person is mentioned?", "Who did this?"),
    "thing": (
        "Which thing is mentioned?",
        "Name the object.",
        "What is it that the person deals with?",
    ),
    "adjective": (
        "How is it described?",
        "Find the describing word.",
        "Which word gives the opinion?",
    ),
    "place": ("Quote the place.", "Which place is mentioned?", "Find the words for the location."),
    "time": ("Quote the time.", "Which date is given?", "Find the words for the moment."),
    "verb": (
        "Find the verb.",
        "What does the person do? Give the verb.",
        "Which word is the action?",
    ),
}
REWRITES = {
    "copy": ("Repeat the text.", "Write it again.", "Copy this."),
    "now": (
        "Tell it as if you saw it now.",
        "Bring the story into today.",
        "Let it happen at this moment.",
    ),
    "place_first": ("Begin with the place.", "Move the location to the front."),
    "person_first": ("Begin with the person.", "Move the name to the front."),
    "opinion_last": (
        "Begin with the time and end with the opinion.",
        "Let the judgement come last.",
    ),
    "short": ("Shorten it.", "Say only who does what.", "Keep the core of the text."),
    "rename": ("Replace the person by {name}.", "Now it is {name}. Change the text."),
}
