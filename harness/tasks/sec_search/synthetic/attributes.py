"""What companies of the synthetic world can be asked about, in exact words and in paraphrase."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Term:
    """A phrase as filings have it, and one that shares no telling word with it."""

    exact: str
    paraphrase: str

    def worded(self, rng: Random, lexical_overlap: float) -> str:
        """The exact phrase with probability `lexical_overlap`, else the paraphrase."""
        return self.exact if rng.random() < lexical_overlap else self.paraphrase


@dataclass(frozen=True)
class Attribute:
    """Something that each company has one value of. Values recur over companies.

    `is_answer`: the value is a place, a number or a date, so a question can ask for it.
    """

    topic: Term
    pool: tuple[Term, ...]
    is_answer: bool


def _firms(names: str, kind: str, paraphrase: str) -> tuple[Term, ...]:
    listed = names.split()
    return tuple(
        Term(f"{a} {b} {kind}", f"a {paraphrase} with the letters {a[0]} and {b[0]}")
        for i, a in enumerate(listed)
        for b in (listed[i - step] for step in range(1, 6))
    )


def _people() -> tuple[Term, ...]:
    first = ["Ada", "Boris", "Carla", "Dmitri", "Elena", "Felix", "Greta", "Hugo", "Ines", "Jonas"]
    last = ["Ashdown", "Brandt", "Calder", "Drummond", "Estrada", "Farrow", "Gilmour", "Hale"]
    return tuple(
        Term(f"{a} {b}", f"someone with the initials {a[0]} and {b[0]}")
        for i, a in enumerate(first)
        for b in last[i % 2 :: 2]
    )


def _places() -> tuple[Term, ...]:
    regions = {
        "the far northwest": "Tacoma Spokane Eugene Boise Yakima",
        "the gulf coast": "Mobile Galveston Pensacola Biloxi Tampa",
        "the great lakes": "Toledo Duluth Milwaukee Erie Racine",
        "the desert southwest": "Tucson Mesa Yuma Laredo Henderson",
        "the central plains": "Omaha Wichita Topeka Lincoln Tulsa",
        "the mid atlantic": "Trenton Dover Scranton Allentown Camden",
        "the old south": "Macon Augusta Jackson Chattanooga Raleigh",
        "northern new england": "Bangor Portland Nashua Burlington Concord",
    }
    return tuple(
        Term(city, f"somewhere in {region}")
        for region, cities in regions.items()
        for city in cities.split()
    )


def _dates() -> tuple[Term, ...]:
    months = ["January", "March", "May", "July", "September", "November"]
    decades = {2012: "early last decade", 2015: "middle of last decade", 2018: "late last decade"}
    return tuple(
        Term(f"{month} {day}, {year}", decades.get(year, "some time after the pandemic began"))
        for day, month in enumerate(months, start=11)
        for year in (2012, 2015, 2018, 2021, 2022, 2023, 2024)
    )


def _amounts(unit: str, sizes: tuple[int, ...], paraphrase: str) -> tuple[Term, ...]:
    return tuple(Term(unit.format(f"{size:,}"), paraphrase) for size in sizes)


_LAW = "Abbott Birch Coleman Dunmore Ellery Fulton Grainger Hollis Ingram Jessup Kendrick Lorimer"
_AUDIT = "Archer Bexley Carrow Denholm Everard Fenwick Garrick Hatton Ivory Joyner Kemble Lister"
_BANKS = "Meridian Northgate Oakhurst Palisade Quarry Riverton Stonebridge Tidewater Union Vantage"
_GOODS = "Zephyr Yellowstone Xenon Wayfarer Vulcan Umbra Titan Sable Rapid Quill Pioneer Orbit"
_MAKERS = "Nimbus Monarch Lodestar Keystone Juniper Ironwood Harbinger Granite Falcon Eclipse Delta"
_COVER = "Sentinel Guardian Bulwark Aegis Rampart Bastion Citadel Paragon Beacon Anchor Shield"
_BUYERS = "Brightwater Copperfield Dunhaven Eastlake Fairmont Glenwood Highmoor Kingsley Larkspur"

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        Term("independent auditor", "bookkeeping examiner"),
        _firms(_AUDIT, "Accountants", "partnership"),
        False,
    ),
    Attribute(Term("board chairman", "leader among directors"), _people(), False),
    Attribute(
        Term("principal supplier", "main vendor"), _firms(_MAKERS, "Components", "maker"), False
    ),
    Attribute(
        Term("flagship product", "best known offering"), _firms(_GOODS, "Platform", "brand"), False
    ),
    Attribute(Term("revolving lender", "credit provider"), _firms(_BANKS, "Bank", "house"), False),
    Attribute(Term("largest customer", "top buyer"), _firms(_BUYERS, "Stores", "chain"), False),
    Attribute(
        Term("outside counsel", "legal adviser"), _firms(_LAW, "Solicitors", "office"), False
    ),
    Attribute(
        Term("liability insurer", "risk carrier"), _firms(_COVER, "Mutual", "risk pool"), False
    ),
    Attribute(Term("manufacturing plant site", "factory whereabouts"), _places(), True),
    Attribute(Term("headquarters city", "seat"), _places(), True),
    Attribute(Term("warehouse opening date", "day of the depot launch"), _dates(), True),
    Attribute(
        Term("term loan amount", "size of borrowing"),
        _amounts("${} thousand", tuple(range(12_500, 92_500, 2_500)), "tens of millions"),
        True,
    ),
    Attribute(
        Term("employee headcount", "number of people on the payroll"),
        _amounts("{} persons", tuple(range(1_150, 9_150, 250)), "several thousands"),
        True,
    ),
    Attribute(
        Term("annual dividend total", "yearly payout"),
        _amounts("{} dollars", tuple(range(310_000, 910_000, 20_000)), "hundreds of thousands"),
        True,
    ),
    Attribute(
        Term("office lease area", "rented floor space"),
        _amounts("{} square feet", tuple(range(21_000, 91_000, 2_000)), "a large hall"),
        True,
    ),
    Attribute(
        Term("share repurchase authorization", "buyback ceiling"),
        _amounts("{} shares", tuple(range(140_000, 840_000, 20_000)), "well below a million"),
        True,
    ),
)

RELATIONS: tuple[Term, ...] = (
    Term("supply agreement", "delivery contract"),
    Term("licensing arrangement", "permission deal"),
    Term("joint venture", "common undertaking"),
)

FORMS = ("10-K", "10-Q", "8-K", "DEF 14A", "20-F")

STATEMENTS = (
    "The {topic} of {company} is {value}.",
    "As of the date of this report, {company} names {value} as its {topic}.",
    "{company} has reported {value} under the heading {topic}.",
    "Management of {company} confirms that the {topic} remains {value}.",
)
BRIDGE_STATEMENTS = (
    "{company} entered into a {relation} with {value}.",
    "A {relation} between {company} and {value} was signed during the period.",
)
TOPIC_ONLY = (
    "The {topic} is described elsewhere in this filing.",
    "There was no change to the {topic} of {company} during the period.",
    "Risks that concern the {topic} are set out below.",
)
DISTRACTORS = (
    "Talks with {value} ended without a result.",
    "A former contract that named {value} expired {number} months ago.",
    "Peers of {company} have mentioned {value} in their own reports.",
)
BOILERPLATE = (
    "Forward-looking statements involve risks and uncertainties that may cause actual results to "
    "differ.",
    "Net sales for the quarter were {number} million compared with {other} million a year earlier.",
    "The Company evaluates its internal control over financial reporting at each fiscal year end.",
    "Depreciation is computed with the straight-line method over useful lives of {number} years.",
    "Income tax expense reflects an effective rate of {number} percent for the period.",
    "Inventories are stated at the lower of cost and net realizable value.",
    "The allowance for credit losses was {number} thousand at the balance sheet date.",
    "Foreign currency translation adjustments are recorded in comprehensive income.",
    "Stock-based awards vest over {number} years subject to continued service.",
    "Legal proceedings that arise in ordinary course are not expected to be material.",
    "Cash flows from operating activities increased by {number} percent.",
    "Goodwill is tested for impairment once a year or when events indicate a decline.",
    "Our segments share research facilities, and costs are allocated by revenue.",
    "Interest rates on outstanding notes range from {number} to {other} basis points.",
    "Environmental remediation obligations total {number} thousand and are accrued.",
    "Seasonality affects demand in the second and third quarters.",
    "Registrants must file exhibits with the Securities and Exchange Commission.",
    "Pension contributions of {number} thousand were made to qualified plans.",
    "Competition in our markets is intense, and pricing pressure may continue.",
    "Capital expenditures were {number} million and relate to maintenance projects.",
    "The effective date of new accounting guidance is fiscal year 20{number}.",
    "Raw material prices fluctuate with energy and transportation costs.",
    "Warranty reserves cover defects for up to {number} months after delivery.",
    "Backlog stood at {number} million, of which most will ship within {other} months.",
)
