"""The words of the bundled corpus as plain tables: one row a word, one column a feature.

Each table is a tuple of frozen rows. English forms are written out, never derived, so that a reader can mend a form
where it stands. Read `grammar.py` next: it turns these rows into sentences.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A thing: `plural` is empty for a mass noun; `spot` says where it may lie (see `SPOTS`)."""

    zh: str
    en: str
    plural: str
    measure: str
    kind: str
    spot: str


@dataclass(frozen=True)
class Who:
    """A person as subject: `person` is one of 1, 2, 3 (singular) and p (plural)."""

    zh: str
    en: str
    obj: str
    poss: str
    person: str


@dataclass(frozen=True)
class Verb:
    """A verb with its English forms, empty where no construction asks for one.

    `objects` lists noun kinds or single Chinese nouns, `where` is a group of places.
    """

    zh: str
    base: str
    s: str
    past: str
    ing: str
    pp: str
    objects: tuple[str, ...]
    where: str


@dataclass(frozen=True)
class Adjective:
    """An adjective, without `more` where it has no degrees.

    `fits` lists the noun kinds it describes, `de` is 的 where it needs one before a noun.
    """

    zh: str
    en: str
    more: str
    de: str
    fits: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A place: Chinese words (spaces between them), English for being there and for going there, its groups."""

    zh: str
    at: str
    to: str
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Act:
    """What is done to 它: a one-word verb, its English base and past, the noun kind it picks out."""

    zh: str
    base: str
    past: str
    kind: str


@dataclass(frozen=True)
class Trait:
    """What is said of 它: the kinds that the adjective may describe at all (the antecedent's must be the only one)."""

    zh: str
    en: str
    fits: tuple[str, ...]


def _nouns(kind: str, *rows: tuple[str, str, str, str, str]) -> tuple[Noun, ...]:
    return tuple(Noun(zh, en, plural, measure, kind, spot) for zh, en, plural, measure, spot in rows)


#   zh, en, plural, measure word, spot
NOUNS: tuple[Noun, ...] = (
    *_nouns(
        "read",
        ("书", "book", "books", "本", "top"),
        ("小说", "novel", "novels", "本", "top"),
        ("报纸", "newspaper", "newspapers", "份", "top"),
        ("杂志", "magazine", "magazines", "本", "top"),
        ("课本", "textbook", "textbooks", "本", "top"),
        ("漫画", "comic", "comics", "本", "top"),
    ),
    *_nouns(
        "drink",
        ("茶", "tea", "", "杯", "top"),
        ("咖啡", "coffee", "", "杯", "top"),
        ("牛奶", "milk", "", "杯", "top"),
        ("果汁", "juice", "", "杯", "top"),
        ("水", "water", "", "杯", "top"),
        ("啤酒", "beer", "", "瓶", "top"),
        ("可乐", "cola", "", "瓶", "top"),
        ("汤", "soup", "", "碗", "top"),
        ("奶茶", "milk tea", "", "杯", "top"),
        ("柠檬茶", "lemon tea", "", "杯", "top"),
    ),
    *_nouns(
        "eat",
        ("苹果", "apple", "apples", "个", "top"),
        ("香蕉", "banana", "bananas", "根", "top"),
        ("橙子", "orange", "oranges", "个", "top"),
        ("梨", "pear", "pears", "个", "top"),
        ("西瓜", "watermelon", "watermelons", "个", "top"),
        ("鸡蛋", "egg", "eggs", "个", "top"),
        ("三明治", "sandwich", "sandwiches", "个", "top"),
        ("包子", "bun", "buns", "个", "top"),
        ("饼干", "cookie", "cookies", "块", "top"),
        ("蛋糕", "cake", "", "块", "top"),
        ("巧克力", "chocolate", "", "块", "top"),
        ("面包", "bread", "", "片", "top"),
        ("米饭", "rice", "", "碗", "top"),
    ),
    *_nouns(
        "wear",
        ("大衣", "coat", "coats", "件", "top"),
        ("毛衣", "sweater", "sweaters", "件", "top"),
        ("衬衫", "shirt", "shirts", "件", "top"),
        ("外套", "jacket", "jackets", "件", "top"),
        ("雨衣", "raincoat", "raincoats", "件", "top"),
        ("裙子", "skirt", "skirts", "条", "top"),
    ),
    *_nouns(
        "drive",
        ("车", "car", "cars", "辆", "yard"),
        ("卡车", "truck", "trucks", "辆", "yard"),
        ("出租车", "taxi", "taxis", "辆", "yard"),
        ("公交车", "bus", "buses", "辆", "yard"),
    ),
    *_nouns(
        "ride",
        ("自行车", "bike", "bikes", "辆", "yard"),
        ("摩托车", "motorcycle", "motorcycles", "辆", "yard"),
        ("马", "horse", "horses", "匹", "yard"),
        ("骆驼", "camel", "camels", "头", "yard"),
    ),
    *_nouns(
        "feed",
        ("猫", "cat", "cats", "只", "pet"),
        ("狗", "dog", "dogs", "只", "pet"),
        ("鸟", "bird", "birds", "只", "pet"),
        ("兔子", "rabbit", "rabbits", "只", "pet"),
        ("鸭子", "duck", "ducks", "只", "yard"),
        ("羊", "goat", "goats", "只", "yard"),
        ("牛", "cow", "cows", "头", "yard"),
        ("猴子", "monkey", "monkeys", "只", "pet"),
    ),
    *_nouns(
        "watch",
        ("电影", "movie", "movies", "部", "file"),
        ("动画片", "cartoon", "cartoons", "部", "file"),
        ("纪录片", "documentary", "documentaries", "部", "file"),
    ),
    *_nouns(
        "listen",
        ("歌", "song", "songs", "首", "file"),
        ("专辑", "album", "albums", "张", "file"),
        ("录音", "recording", "recordings", "段", "file"),
    ),
    *_nouns(
        "fix",
        ("电脑", "computer", "computers", "台", "top"),
        ("手机", "phone", "phones", "部", "top"),
        ("相机", "camera", "cameras", "台", "top"),
        ("钟", "clock", "clocks", "个", "top"),
        ("打印机", "printer", "printers", "台", "top"),
        ("冰箱", "fridge", "fridges", "台", "room"),
        ("电视", "TV", "TVs", "台", "room"),
    ),
    *_nouns(
        "off",
        ("灯", "light", "lights", "盏", "room"),
        ("风扇", "fan", "fans", "台", "top"),
        ("收音机", "radio", "radios", "台", "top"),
        ("闹钟", "alarm", "alarms", "个", "top"),
    ),
    *_nouns(
        "wash",
        ("盘子", "plate", "plates", "个", "top"),
        ("碗", "bowl", "bowls", "个", "top"),
        ("杯子", "cup", "cups", "个", "top"),
        ("锅", "pot", "pots", "口", "top"),
        ("勺子", "spoon", "spoons", "把", "top"),
        ("叉子", "fork", "forks", "把", "top"),
    ),
    *_nouns(
        "play",
        ("钢琴", "piano", "pianos", "架", "room"),
        ("竖琴", "harp", "harps", "架", "room"),
        ("吉他", "guitar", "guitars", "把", "room"),
        ("琵琶", "pipa", "pipas", "把", "room"),
    ),
    *_nouns(
        "plant",
        ("花", "flower", "flowers", "朵", "yard"),
        ("玫瑰", "rose", "roses", "朵", "yard"),
        ("郁金香", "tulip", "tulips", "朵", "yard"),
        ("向日葵", "sunflower", "sunflowers", "棵", "yard"),
        ("树", "tree", "trees", "棵", "yard"),
    ),
    *_nouns(
        "open",
        ("箱子", "box", "boxes", "个", "top"),
        ("抽屉", "drawer", "drawers", "个", "room"),
        ("行李箱", "suitcase", "suitcases", "个", "room"),
        ("门", "door", "doors", "扇", "none"),
        ("窗户", "window", "windows", "扇", "none"),
        ("雨伞", "umbrella", "umbrellas", "把", "top"),
    ),
    *_nouns(
        "write",
        ("钢笔", "pen", "pens", "支", "top"),
        ("铅笔", "pencil", "pencils", "支", "top"),
        ("毛笔", "brush", "brushes", "支", "top"),
        ("蜡笔", "crayon", "crayons", "支", "top"),
    ),
    *_nouns(
        "mail",
        ("信", "letter", "letters", "封", "top"),
        ("包裹", "parcel", "parcels", "个", "top"),
        ("明信片", "postcard", "postcards", "张", "top"),
    ),
    *_nouns(
        "sit",
        ("椅子", "chair", "chairs", "把", "room"),
        ("沙发", "sofa", "sofas", "张", "room"),
        ("床", "bed", "beds", "张", "room"),
    ),
    *_nouns(
        "carry",
        ("地图", "map", "maps", "张", "top"),
        ("照片", "photo", "photos", "张", "top"),
        ("票", "ticket", "tickets", "张", "top"),
        ("钥匙", "key", "keys", "把", "top"),
        ("书包", "backpack", "backpacks", "个", "top"),
        ("玩具", "toy", "toys", "个", "top"),
    ),
)

# A mass noun is counted by its measure word: Chinese measure -> English container, singular and plural.
CONTAINERS: tuple[tuple[str, str, str], ...] = (
    ("杯", "cup of", "cups of"),
    ("瓶", "bottle of", "bottles of"),
    ("碗", "bowl of", "bowls of"),
    ("块", "piece of", "pieces of"),
    ("片", "slice of", "slices of"),
)

NUMBERS: tuple[tuple[str, str, int], ...] = (
    ("一", "one", 1), ("两", "two", 2), ("三", "three", 3), ("四", "four", 4), ("五", "five", 5), ("六", "six", 6),
    ("七", "seven", 7), ("八", "eight", 8), ("九", "nine", 9), ("十", "ten", 10), ("十一", "eleven", 11),
    ("十二", "twelve", 12),
)  # fmt: skip

PRONOUNS: tuple[Who, ...] = (
    Who("我", "I", "me", "my", "1"),
    Who("你", "you", "you", "your", "2"),
    Who("他", "he", "him", "his", "3"),
    Who("她", "she", "her", "her", "3"),
    Who("我们", "we", "us", "our", "p"),
    Who("他们", "they", "them", "their", "p"),
)
NAMES: tuple[Who, ...] = tuple(
    Who(zh, en, en, f"{en}'s", "3")
    for zh, en in (
        ("小明", "Xiaoming"), ("小帅", "Xiaoshuai"), ("小红", "Xiaohong"), ("汤姆", "Tom"), ("玛丽", "Mary"),
        ("苏珊", "Susan"), ("约翰", "John"), ("妈妈", "Mom"), ("爸爸", "Dad"), ("奶奶", "Grandma"), ("爷爷", "Grandpa"),
    )
)  # fmt: skip
#   zh, en, plural: what people are; as a subject without an article in Chinese it takes "the" in English
JOBS: tuple[tuple[str, str, str], ...] = (
    ("老师", "teacher", "teachers"),
    ("学生", "student", "students"),
    ("医生", "doctor", "doctors"),
    ("司机", "driver", "drivers"),
    ("护士", "nurse", "nurses"),
    ("工程师", "engineer", "engineers"),
    ("厨师", "cook", "cooks"),
    ("画家", "painter", "painters"),
    ("探险家", "explorer", "explorers"),
    ("歌手", "singer", "singers"),
    ("警察", "police officer", "police officers"),
    ("演员", "actor", "actors"),
)
ROLES: tuple[Who, ...] = tuple(Who(zh, f"the {en}", f"the {en}", f"the {en}'s", "3") for zh, en, _ in JOBS)
#   zh, en: said with 我的, 他的 ... ("my friend")
KIN: tuple[tuple[str, str], ...] = (
    ("朋友", "friend"), ("同学", "classmate"), ("妹妹", "sister"), ("弟弟", "brother"), ("邻居", "neighbor"),
    ("儿子", "son"), ("女儿", "daughter"), ("老板", "boss"),
)  # fmt: skip

_GOODS = (
    "read",
    "drink",
    "eat",
    "wear",
    "fix",
    "wash",
    "write",
    "carry",
    "plant",
    "sit",
    "play",
    "off",
    "箱子",
    "行李箱",
    "雨伞",
)
#   zh, base, he ..., past, -ing, participle, objects, where
VERBS: tuple[Verb, ...] = (
    Verb("买", "buy", "buys", "bought", "buying", "bought", (*_GOODS, "drive", "ride"), "shop"),
    Verb("卖", "sell", "sells", "sold", "selling", "sold", (*_GOODS, "drive", "ride"), "shop"),
    Verb("看", "read", "reads", "read", "reading", "read", ("read",), "calm"),
    Verb("看", "watch", "watches", "watched", "watching", "watched", ("watch",), "calm"),
    Verb("喝", "drink", "drinks", "drank", "drinking", "drunk", ("drink",), "food"),
    Verb("吃", "eat", "eats", "ate", "eating", "eaten", ("eat",), "food"),
    Verb("做", "make", "makes", "made", "making", "made", ("蛋糕", "面包", "三明治", "包子", "饼干", "汤"), "cook"),
    Verb("穿", "wear", "wears", "wore", "wearing", "worn", ("wear",), "calm"),
    Verb("开", "drive", "drives", "drove", "driving", "driven", ("drive",), "city"),
    Verb("骑", "ride", "rides", "rode", "riding", "ridden", ("ride",), "out"),
    Verb("喂", "feed", "feeds", "fed", "feeding", "fed", ("feed",), "out"),
    Verb("修", "fix", "fixes", "fixed", "fixing", "fixed",
        ("fix", "off", "drive", "自行车", "摩托车", "抽屉", "窗户", "门"), "home"),
    Verb("洗", "wash", "washes", "washed", "washing", "washed", ("wash", "wear"), "home"),
    Verb("弹", "play", "plays", "played", "playing", "played", ("play",), "calm"),
    Verb("听", "listen to", "listens to", "listened to", "listening to", "listened to", ("listen",), "calm"),
    Verb("种", "plant", "plants", "planted", "planting", "planted", ("plant",), "out"),
    Verb("打开", "open", "opens", "opened", "opening", "opened", ("open",), "home"),
    Verb("写", "write", "writes", "wrote", "writing", "written", ("信", "小说", "歌", "书", "明信片"), "calm"),
    Verb("寄", "mail", "mails", "mailed", "mailing", "mailed", ("mail",), "city"),
    Verb("用", "use", "uses", "used", "using", "used", ("write", "fix", "wash"), "calm"),
    Verb("画", "draw", "draws", "drew", "drawing", "drawn", ("feed", "plant", "drive", "ride", "地图"), "out"),
    Verb("拍", "take", "takes", "took", "taking", "taken", ("照片",), "out"),
    Verb("找", "look for", "looks for", "looked for", "looking for", "looked for", ("carry", "write", "read"), "home"),
    Verb("借", "borrow", "borrows", "borrowed", "borrowing", "borrowed", ("read", "write", "ride", "雨伞"), "calm"),
    Verb("带", "bring", "brings", "brought", "bringing", "brought", ("drink", "eat", "carry", "read", "雨伞"), "calm"),
)  # fmt: skip
# Verbs that take 了 but no 正在: seeing, finding, losing.
EVENTS: tuple[Verb, ...] = (
    Verb("看见", "see", "", "saw", "", "", ("feed", "drive", "ride", "plant", "carry"), "out"),
    Verb("找到", "find", "", "found", "", "found", ("carry", "write", "read", "wear", "feed", "fix"), "home"),
    Verb("丢", "lose", "", "lost", "", "lost", ("carry", "write", "手机", "相机", "雨伞", "行李箱"), "city"),
    Verb("收到", "receive", "", "received", "", "received", ("mail", "plant", "玩具"), "home"),
)
# Verbs of state: no 了, no 正在.
STATES: tuple[Verb, ...] = (
    Verb("喜欢", "like", "likes", "", "", "", ("read", "drink", "eat", "feed", "plant", "watch"), ""),
    Verb("爱", "love", "loves", "", "", "", ("drink", "eat", "feed", "watch"), ""),
    Verb("需要", "need", "needs", "", "", "", (*_GOODS, "drive"), ""),
    Verb("有", "have", "has", "", "", "", (*_GOODS, "drive", "ride", "feed"), ""),
    Verb("想要", "want", "wants", "", "", "", (*_GOODS, "ride", "feed"), ""),
)
# Between two people.
SOCIAL: tuple[Verb, ...] = (
    Verb("爱", "love", "loves", "", "", "", (), ""),
    Verb("喜欢", "like", "likes", "", "", "", (), ""),
    Verb("认识", "know", "knows", "", "", "", (), ""),
    Verb("想念", "miss", "misses", "", "", "", (), ""),
    Verb("帮助", "help", "helps", "helped", "helping", "", (), ""),
    Verb("等", "wait for", "waits for", "waited for", "waiting for", "", (), ""),
    Verb("教", "teach", "teaches", "taught", "teaching", "", (), ""),
    Verb("相信", "trust", "trusts", "", "", "", (), ""),
)
# Without an object.
DOINGS: tuple[Verb, ...] = (
    Verb("起床", "get up", "gets up", "got up", "getting up", "", (), ""),
    Verb("学习", "study", "studies", "studied", "studying", "", (), "calm"),
    Verb("工作", "work", "works", "worked", "working", "", (), "work"),
    Verb("睡觉", "sleep", "sleeps", "slept", "sleeping", "", (), "sleep"),
    Verb("游泳", "swim", "swims", "swam", "swimming", "", (), "water"),
    Verb("跑步", "run", "runs", "ran", "running", "", (), "out"),
    Verb("跳舞", "dance", "dances", "danced", "dancing", "", (), "out"),
    Verb("唱歌", "sing", "sings", "sang", "singing", "", (), "out"),
    Verb("做饭", "cook", "cooks", "cooked", "cooking", "", (), "cook"),
    Verb("休息", "rest", "rests", "rested", "resting", "", (), "calm"),
    Verb("散步", "take a walk", "takes a walk", "took a walk", "taking a walk", "", (), "out"),
    Verb("聊天", "chat", "chats", "chatted", "chatting", "", (), "calm"),
    Verb("购物", "shop", "shops", "shopped", "shopping", "", (), "mall"),
)  # fmt: skip

_THING = ("read", "wear", "drive", "fix", "wash", "play", "open", "write", "sit", "off")
#   zh, en, comparative, 的 before a noun, fits
ADJECTIVES: tuple[Adjective, ...] = (
    Adjective("新", "new", "newer", "", _THING),
    Adjective("旧", "old", "older", "", _THING),
    Adjective("大", "big", "bigger", "", ("feed", "plant", "sit", "open", "wash", "西瓜", "苹果", "ride", "drive")),
    Adjective("小", "small", "smaller", "", ("feed", "plant", "open", "wash", "play", "sit", "苹果", "梨", "ride")),
    Adjective("贵", "expensive", "more expensive", "的", (*_THING, "drink", "eat", "ride", "plant", "carry")),
    Adjective("便宜", "cheap", "cheaper", "的", (*_THING, "drink", "eat", "plant", "carry")),
    Adjective("红", "red", "", "", ("wear", "plant", "drive", "自行车", "雨伞", "杯子", "苹果")),
    Adjective("白", "white", "", "", ("wear", "feed", "plant", "drive", "马", "wash")),
    Adjective("黑", "black", "", "", ("wear", "feed", "drive", "马", "雨伞", "狗")),
    Adjective("漂亮", "beautiful", "more beautiful", "的", ("wear", "plant", "feed", "carry", "sit", "马")),
    Adjective("干净", "clean", "cleaner", "的", ("wear", "wash", "drive", "sit")),
    Adjective("重", "heavy", "heavier", "的", ("read", "sit", "fix", "箱子", "行李箱", "书包", "包裹", "西瓜")),
    Adjective("快", "fast", "faster", "的", ("drive", "ride", "电脑", "手机")),
    Adjective("有趣", "interesting", "more interesting", "的", ("read", "watch", "玩具", "地图")),
    Adjective("好吃", "delicious", "", "的", ("eat",)),
    Adjective("好喝", "tasty", "tastier", "的", ("drink",)),
    Adjective("可爱", "cute", "cuter", "的", ("feed", "玩具")),
    Adjective("热", "hot", "hotter", "", ("茶", "咖啡", "牛奶", "汤", "水", "奶茶")),
)  # fmt: skip
#   zh, en, comparative: said of people
FEELINGS: tuple[tuple[str, str, str], ...] = (
    ("高兴", "happy", "happier"),
    ("累", "tired", "more tired"),
    ("饿", "hungry", "hungrier"),
    ("忙", "busy", "busier"),
    ("高", "tall", "taller"),
    ("聪明", "smart", "smarter"),
    ("勇敢", "brave", "braver"),
    ("年轻", "young", "younger"),
    ("难过", "sad", "sadder"),
    ("生气", "angry", "angrier"),
)

PLACES: tuple[Place, ...] = (
    Place("家", "at home", "home", ("calm", "food", "home", "cook", "work", "sleep")),
    Place("学校", "at school", "to school", ("calm", "food", "work", "city")),
    Place("图书馆", "at the library", "to the library", ("calm", "work")),
    Place("教室 里", "in the classroom", "to the classroom", ("calm", "home")),
    Place("办公室", "in the office", "to the office", ("calm", "work", "food", "sleep")),
    Place("咖啡馆", "at the coffee shop", "to the coffee shop", ("calm", "food", "work")),
    Place("餐厅", "at the restaurant", "to the restaurant", ("food", "work")),
    Place("厨房 里", "in the kitchen", "to the kitchen", ("food", "cook", "home")),
    Place("房间 里", "in the room", "to the room", ("calm", "home", "sleep")),
    Place("公园", "in the park", "to the park", ("out",)),
    Place("花园 里", "in the garden", "to the garden", ("out",)),
    Place("院子 里", "in the yard", "to the yard", ("out", "home")),
    Place("海边", "at the seaside", "to the seaside", ("out", "water")),
    Place("河岸 上", "on the river bank", "to the river bank", ("out",)),
    Place("游泳池", "at the pool", "to the pool", ("water",)),
    Place("动物园", "at the zoo", "to the zoo", ("out",)),
    Place("商店", "at the store", "to the store", ("shop", "mall", "work")),
    Place("超市", "at the supermarket", "to the supermarket", ("shop", "mall", "work")),
    Place("市场", "at the market", "to the market", ("shop", "mall", "work")),
    Place("奶茶店", "at the tea shop", "to the tea shop", ("food", "work")),
    Place("医院", "at the hospital", "to the hospital", ("work", "city")),
    Place("银行", "at the bank", "to the bank", ("work", "city")),
    Place("车站", "at the station", "to the station", ("work", "city")),
    Place("机场", "at the airport", "to the airport", ("work", "city")),
    Place("北京", "in Beijing", "to Beijing", ("city", "shop", "work", "world")),
    Place("上海", "in Shanghai", "to Shanghai", ("city", "shop", "work", "world")),
    Place("中国", "in China", "to China", ("city", "work", "world")),
    Place("美国", "in America", "to America", ("city", "work", "world")),
    Place("日本", "in Japan", "to Japan", ("city", "work", "world")),
    Place("法国", "in France", "to France", ("city", "work", "world")),
    Place("英国", "in England", "to England", ("city", "work", "world")),
    Place("巴黎", "in Paris", "to Paris", ("city", "work", "world")),
    Place("东京", "in Tokyo", "to Tokyo", ("city", "work", "world")),
    Place("伦敦", "in London", "to London", ("city", "work", "world")),
)
CAPITALS: tuple[tuple[str, str, str, str], ...] = (
    ("中国", "China", "北京", "Beijing"),
    ("日本", "Japan", "东京", "Tokyo"),
    ("法国", "France", "巴黎", "Paris"),
    ("英国", "England", "伦敦", "London"),
)
# Where things lie: Chinese words, English, the spots of `Noun.spot` that may lie there.
SPOTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("桌上", "on the table", ("top",)),
    ("椅子 上", "on the chair", ("top",)),
    ("书架 上", "on the shelf", ("top",)),
    ("地上", "on the floor", ("top", "pet")),
    ("沙发 上", "on the sofa", ("top", "pet")),
    ("床 上", "on the bed", ("top", "pet")),
    ("房间 里", "in the room", ("top", "pet", "room")),
    ("客厅 里", "in the living room", ("top", "pet", "room")),
    ("厨房 里", "in the kitchen", ("top", "pet")),
    ("花园 里", "in the garden", ("top", "pet", "yard")),
    ("院子 里", "in the yard", ("top", "pet", "yard")),
    ("门口", "at the door", ("top", "pet", "yard")),
    ("手机 里", "on the phone", ("file",)),
    ("电脑 里", "on the computer", ("file",)),
)

PAST: tuple[tuple[str, str], ...] = (
    ("昨天", "yesterday"), ("昨晚", "last night"), ("今早", "this morning"), ("上周", "last week"),
    ("刚才", "just now"), ("昨天 下午", "yesterday afternoon"), ("昨天 早上", "yesterday morning"),
    ("星期一", "on Monday"), ("星期五", "on Friday"), ("上个月", "last month"),
)  # fmt: skip
FUTURE: tuple[tuple[str, str], ...] = (
    ("明天", "tomorrow"), ("后天", "the day after tomorrow"), ("下周", "next week"), ("今晚", "tonight"),
    ("明天 早上", "tomorrow morning"), ("明天 下午", "tomorrow afternoon"), ("周末", "this weekend"),
)  # fmt: skip
HABIT: tuple[tuple[str, str], ...] = (
    ("每天", "every day"), ("每天 早上", "every morning"), ("每天 晚上", "every evening"), ("每周", "every week"),
    ("早上", "in the morning"), ("晚上", "in the evening"),
)  # fmt: skip
OFTEN: tuple[tuple[str, str], ...] = (
    ("常常", "often"),
    ("总是", "always"),
    ("有时候", "sometimes"),
    ("很少", "seldom"),
)
#   zh, English before the base form; in a question it moves to the front
MODALS: tuple[tuple[str, str], ...] = (("能", "can"), ("可以", "can"), ("必须", "must"), ("应该", "should"))

LANGUAGES: tuple[tuple[str, str], ...] = (
    ("中文", "Chinese"),
    ("英语", "English"),
    ("法语", "French"),
    ("日语", "Japanese"),
)
SUBJECTS: tuple[tuple[str, str], ...] = (
    *LANGUAGES, ("数学", "math"), ("历史", "history"), ("音乐", "music"), ("物理", "physics"),
)  # fmt: skip
GAMES: tuple[tuple[str, str, str], ...] = (
    ("踢", "足球", "soccer"), ("打", "篮球", "basketball"), ("打", "网球", "tennis"), ("下", "象棋", "chess"),
)  # fmt: skip
RIDES: tuple[tuple[str, str], ...] = (
    ("火车", "by train"), ("飞机", "by plane"), ("地铁", "by subway"), ("公交车", "by bus"), ("出租车", "by taxi"),
)  # fmt: skip
COMPANIES: tuple[tuple[str, str], ...] = (
    ("苹果", "Apple"), ("华为", "Huawei"), ("谷歌", "Google"), ("微软", "Microsoft"), ("小米", "Xiaomi"),
)  # fmt: skip
#   zh, base, he ..., past: what a company does
# Who in a company, with the English preposition.
STAFF: tuple[tuple[str, str], ...] = (
    ("老板", "boss of"), ("工程师", "engineer at"), ("司机", "driver at"), ("厨师", "cook at"),
)  # fmt: skip
LAUNCHES: tuple[tuple[str, str, str, str], ...] = (
    ("发布", "release", "releases", "released"),
    ("推出", "launch", "launches", "launched"),
    ("设计", "design", "designs", "designed"),
    ("生产", "produce", "produces", "produced"),
)
#   zh, en, plural, measure: what a company makes
PRODUCTS: tuple[tuple[str, str, str, str], ...] = (
    ("手机", "phone", "phones", "部"),
    ("电脑", "computer", "computers", "台"),
    ("相机", "camera", "cameras", "台"),
    ("耳机", "headset", "headsets", "副"),
    ("手表", "watch", "watches", "块"),
    ("平板", "tablet", "tablets", "台"),
)
#   zh, en with now, past, future
WEATHER: tuple[tuple[str, str, str, str], ...] = (
    ("下雨", "raining", "rained", "rain"),
    ("下雪", "snowing", "snowed", "snow"),
)
SKY: tuple[tuple[str, str], ...] = (
    ("好", "good"),
    ("冷", "cold"),
    ("热", "hot"),
    ("暖和", "warm"),
    ("糟糕", "terrible"),
)
# How something is done: Chinese verb before 得, English he/they forms, adverbs.
MANNERS: tuple[tuple[str, str, str], ...] = (
    ("跑", "run", "runs"), ("走", "walk", "walks"), ("写", "write", "writes"), ("唱", "sing", "sings"),
    ("说", "speak", "speaks"), ("游", "swim", "swims"), ("吃", "eat", "eats"),
)  # fmt: skip
ADVERBS: tuple[tuple[str, str], ...] = (("快", "fast"), ("慢", "slowly"), ("好", "well"))

# What is done to 它 and which kind of thing that picks out.
ACTS: tuple[Act, ...] = (
    Act("看完", "finish reading", "finished reading", "read"),
    Act("读完", "finish reading", "finished reading", "read"),
    Act("看完", "finish watching", "finished watching", "watch"),
    Act("喝完", "finish drinking", "finished drinking", "drink"),
    Act("喝光", "drink up", "drank up", "drink"),
    Act("吃完", "finish eating", "finished eating", "eat"),
    Act("吃光", "eat up", "ate up", "eat"),
    Act("穿上", "put on", "put on", "wear"),
    Act("停好", "park", "parked", "drive"),
    Act("骑", "ride", "rode", "ride"),
    Act("喂", "feed", "fed", "feed"),
    Act("听完", "finish listening to", "finished listening to", "listen"),
    Act("修好", "fix", "fixed", "fix"),
    Act("关掉", "turn off", "turned off", "off"),
    Act("洗", "wash", "washed", "wash"),
    Act("弹", "play", "played", "play"),
    Act("浇", "water", "watered", "plant"),
    Act("打开", "open", "opened", "open"),
    Act("寄出", "mail", "mailed", "mail"),
)
# Kinds whose things an act could also be done to: such a pair would leave 它 open, so it is never built.
SUITS: dict[str, tuple[str, ...]] = {
    "read": ("read", "watch", "mail"),
    "watch": ("watch", "read"),
    "drink": ("drink",),
    "eat": ("eat",),
    "wear": ("wear",),
    "drive": ("drive", "ride"),
    "ride": ("ride", "feed"),
    "feed": ("feed", "ride"),
    "listen": ("listen",),
    "fix": ("fix", "off", "drive", "ride", "play", "open", "sit", "write"),
    "off": ("off", "fix", "drive", "open"),
    "wash": ("wash", "wear", "drive", "ride", "eat", "feed", "sit", "open"),
    "play": ("play", "listen"),
    "plant": ("plant",),
    "open": ("open", "fix", "off", "read", "mail", "drive", "drink", "write", "sit"),
    "mail": ("mail", "read", "write", "wear", "open", "listen", "watch", "fix", "eat"),
    "write": ("write", "fix", "off", "wash", "play", "open", "read"),
    "sit": (),
    "carry": (),
}
_OBJECT = (
    "read",
    "wear",
    "drive",
    "ride",
    "fix",
    "off",
    "wash",
    "play",
    "open",
    "write",
    "sit",
    "listen",
    "watch",
    "mail",
)
# What is said of 它.
TRAITS: tuple[Trait, ...] = (
    Trait("旧", "old", _OBJECT),
    Trait("烫", "hot", ("drink", "eat", "wash", "fix", "off")),
    Trait("好喝", "tasty", ("drink",)),
    Trait("好吃", "delicious", ("eat",)),
    Trait("甜", "sweet", ("eat", "drink")),
    Trait("有趣", "interesting", ("read", "watch", "listen", "mail", "play")),
    Trait("饿", "hungry", ("feed", "ride")),
    Trait("可爱", "cute", ("feed", "wear", "wash")),
    Trait("快", "fast", ("drive", "ride", "feed", "fix", "off")),
    Trait("暖和", "warm", ("wear", "sit")),
    Trait("香", "fragrant", ("plant", "drink", "eat")),
)
# The kinds that a trait is said of; beside them, a thing that also fits the trait never stands in the sentence.
TRAIT_OWNERS: dict[str, tuple[str, ...]] = {
    "旧": ("read", "wear", "drive", "fix", "play", "sit"),
    "烫": ("drink",),
    "好喝": ("drink",),
    "好吃": ("eat",),
    "甜": ("eat",),
    "有趣": ("read", "watch"),
    "饿": ("feed",),
    "可爱": ("feed",),
    "快": ("drive", "ride"),
    "暖和": ("wear",),
    "香": ("plant",),
}

# Words that the grammar itself uses, apart from the tables above.
FUNCTION_ZH = """
一 了 的 在 都 和 有 没 没有 不 不要 吗 什么 谁 哪里 为什么 几 是 这 那 很 非常 太 比 一样 把 被 放在 给 送给
因为 所以 但是 然后 去 过 坐 学 也 又 个 位 小时 岁 今年 每年 今天 点 几 天气 如何 现在 正在 会 想 当 请 首都 知道 来自
说 得 已经
大家 共同 努力 一起 科技 巨头 美味 拥有 发现 有一天 钱 存在 睡 它 上 里 ， 。 ？ 、
"""
FUNCTION_EN = """
a an the and not do does did is are was were am has have been be will can cannot should must to at on in by with for
of from any no
many this that it very too both all also together hard works work but then
went gave wrote put money bank more than equally old year years hour hours one day discovered capital knows know comes
come
weather today now tech giant boss tasty never already learning o clock at every year because playing speak play make
sleeping sitting goes go ate had
"""
OPENERS_EN = """
I You He She We They The This That There My Your His Her Our Their What Who Where Why How Whose Do Does Did Is Are Am
Can Will Has Have Should Because Please One Everyone It
"""
MARKS_EN = ". ? , ' s"
