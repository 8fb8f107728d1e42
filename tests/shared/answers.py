"""One page, as models of each answer format write it, and the blocks that it is."""

from dataclasses import dataclass

from pecia_schemas.blocks import BlockKind
from pecia_workers.engines.reader_cards import AnswerFormat

PAGE = (1000, 1400)
"""Width and height in pixels."""

Shown = tuple[tuple[BlockKind, str], ...]


@dataclass(frozen=True)
class FormatAnswer:
    """What a model wrote."""

    format: AnswerFormat
    model: str
    text: str
    blocks: Shown
    has_places: bool = False


_TITLE = (BlockKind.TITLE, "Laboratory report")
_HEADING = (BlockKind.HEADING, "Laboratory report")
_TEXT = (BlockKind.TEXT, "Amoxicillin 500 mg, x < 5")
_LIST = (BlockKind.LIST, "- Na 140\n- K 4.1")
_TABLE = (BlockKind.TABLE, "Test\tValue\nNa\t140")
_PIPES = "| Test | Value |\n|---|---|\n| Na | 140 |"
_HTML_TABLE = "<table><tr><th>Test</th><th>Value</th></tr><tr><td>Na</td><td>140</td></tr></table>"
_MARKDOWN = f"# Laboratory report\n\nAmoxicillin **500 mg**, x < 5\n\n- Na 140\n- K 4.1\n\n{_PIPES}"

ANSWERS = (
    FormatAnswer(
        AnswerFormat.MARKDOWN, "lightonai/LightOnOCR-2-1B", _MARKDOWN, (_HEADING, _TEXT, _LIST, _TABLE)
    ),
    FormatAnswer(
        AnswerFormat.FRONT_MATTER,
        "allenai/olmOCR-2-7B-1025-FP8",
        "---\nprimary_language: en\nis_rotation_valid: True\nrotation_correction: 0\nis_table: False\n"
        f"is_diagram: False\n---\n{_MARKDOWN}",
        (_HEADING, _TEXT, _LIST, _TABLE),
    ),
    FormatAnswer(
        AnswerFormat.TAGGED,
        "nanonets/Nanonets-OCR2-3B",
        f"<watermark>COPY</watermark>\n{_MARKDOWN}\n\n<img>A chart</img>\n\n<page_number>9/22</page_number>",
        (
            (BlockKind.STAMP, "COPY"),
            *(_HEADING, _TEXT, _LIST, _TABLE),
            (BlockKind.FIGURE, "A chart"),
            (BlockKind.PAGE_NUMBER, "9/22"),
        ),
    ),
    FormatAnswer(
        AnswerFormat.GROUNDED,
        "deepseek-ai/DeepSeek-OCR-2",
        "<|ref|>title<|/ref|><|det|>[[330, 198, 558, 230]]<|/det|>\n# Laboratory report \n\n"
        "<|ref|>text<|/ref|><|det|>[[100, 240, 500, 250], [100, 255, 300, 265]]<|/det|>\n"
        "Amoxicillin **500 mg**, x < 5 \n\n"
        "<|ref|>image<|/ref|><|det|>[[100, 270, 500, 300]]<|/det|>\n\n"
        "<|ref|>text<|/ref|><|det|>[[100, 310, 500, 330]]<|/det|>\n- Na 140\n- K 4.1\n\n"
        f"<|ref|>table<|/ref|><|det|>[[100, 340, 900, 400]]<|/det|>\n{_HTML_TABLE}",
        (_TITLE, _TEXT, _LIST, _TABLE),
        has_places=True,
    ),
    FormatAnswer(
        AnswerFormat.HTML,
        "datalab-to/chandra-ocr-2",
        '<div data-bbox="85 20 158 30" data-label="Page-Header"><p>St. Mary</p></div>\n'
        '<div data-bbox="85 47 550 63" data-label="Section-Header"><h1><b>Laboratory report</b></h1></div>\n'
        '<div data-bbox="85 90 500 106" data-label="Text"><p>Amoxicillin <b>500 mg</b>, x &lt; 5</p></div>\n'
        '<div data-bbox="85 110 500 150" data-label="List-Group"><ul><li>Na 140</li><li>K 4.1</li></ul></div>\n'
        f'<div data-bbox="85 160 900 300" data-label="Table">{_HTML_TABLE}</div>\n'
        '<div data-bbox="85 310 500 400" data-label="Figure"><img alt="A chart"/></div>\n'
        '<div data-bbox="85 410 500 420" data-label="Form"><p><input type="checkbox" checked> fasting</p></div>\n'
        '<div data-bbox="85 430 500 440" data-label="Equation-Block"><math display="block">a^2</math></div>',
        (
            (BlockKind.HEADER, "St. Mary"),
            *(_HEADING, _TEXT, _LIST, _TABLE),
            (BlockKind.FIGURE, "A chart"),
            (BlockKind.TEXT, "☑ fasting"),
            (BlockKind.FORMULA, "$$a^2$$"),
        ),
        has_places=True,
    ),
    FormatAnswer(
        AnswerFormat.LAYOUT,
        "rednote-hilab/dots.ocr",
        '```json\n[{"bbox": [10, 10, 500, 40], "category": "Page-header", "text": "St. Mary"},\n'
        '{"bbox": [50, 60, 800, 120], "category": "Title", "text": "# Laboratory report"},\n'
        '{"bbox": [50, 130, 800, 160], "category": "Text", "text": "Amoxicillin **500 mg**, x < 5"},\n'
        '{"bbox": [50, 170, 800, 190], "category": "List-item", "text": "- Na 140\\n- K 4.1"},\n'
        '{"bbox": [50, 200, 800, 300], "category": "Picture"},\n'
        f'{{"bbox": [50, 310, 800, 400], "category": "Table", "text": "{_HTML_TABLE}"}},\n'
        '{"bbox": [50, 410, 800, 430], "category": "Formula", "text": "$$\\na^2\\n$$"},\n'
        '{"bbox": [50, 440, 800, 460], "category": "Caption", "text": "Figure 1: A chart."}]\n```',
        (
            (BlockKind.HEADER, "St. Mary"),
            *(_TITLE, _TEXT, _LIST, _TABLE),
            (BlockKind.FORMULA, "$$\na^2\n$$"),
            (BlockKind.CAPTION, "Figure 1: A chart."),
        ),
        has_places=True,
    ),
    FormatAnswer(
        AnswerFormat.LAYOUT_1000,
        "infly/Infinity-Parser2-Pro",
        '```json\n[{"bbox": [10, 10, 500, 40], "category": "header", "text": "St. Mary"},\n'
        '{"bbox": [50, 60, 800, 120], "category": "title", "text": "# Laboratory report"},\n'
        '{"bbox": [50, 130, 800, 160], "category": "text", "text": "Amoxicillin **500 mg**, x < 5"},\n'
        '{"bbox": [50, 200, 800, 300], "category": "figure", "text": ""},\n'
        f'{{"bbox": [50, 310, 800, 400], "category": "table", "text": "{_HTML_TABLE}"}},\n'
        '{"bbox": [50, 410, 800, 430], "category": "formula", "text": "a^2"},\n'
        '{"bbox": [50, 440, 800, 460], "category": "figure_caption", "text": "Figure 1: A chart."}]\n```',
        (
            (BlockKind.HEADER, "St. Mary"),
            *(_TITLE, _TEXT, _TABLE),
            (BlockKind.FORMULA, "$$a^2$$"),
            (BlockKind.CAPTION, "Figure 1: A chart."),
        ),
        has_places=True,
    ),
    FormatAnswer(
        AnswerFormat.MARKED,
        "lightonai/LightOnOCR-3-1B",
        "![header](10,10,500,40) St. Mary\n![title](50,60,800,120) # Laboratory report\n"
        "![text](50,130,800,160) Amoxicillin **500 mg**, x < 5\n![list](50,170,800,190) - Na 140\n- K 4.1\n"
        f"![table](50,200,800,300) {_HTML_TABLE}\n![formula](50,310,800,330) $$a^2$$\n"
        "![image](50,340,800,400) A chart\n![caption](50,410,800,430) Figure 1: A chart.\n"
        "![text+](50,440,800,460) and so on\n![page_number](491,935,505,950) 3",
        (
            (BlockKind.HEADER, "St. Mary"),
            *(_HEADING, _TEXT, _LIST, _TABLE),
            (BlockKind.FORMULA, "$$a^2$$"),
            (BlockKind.FIGURE, "A chart"),
            (BlockKind.CAPTION, "Figure 1: A chart."),
            (BlockKind.TEXT, "and so on"),
            (BlockKind.PAGE_NUMBER, "3"),
        ),
        has_places=True,
    ),
    FormatAnswer(
        AnswerFormat.DOCTAGS,
        "ibm-granite/granite-docling-258M",
        "<doctag><page_header><loc_15><loc_10><loc_240><loc_20>St. Mary &amp; Co</page_header>\n"
        "<section_header_level_1><loc_57><loc_70><loc_420><loc_78>Laboratory report</section_header_level_1>\n"
        "<text><loc_57><loc_84><loc_420><loc_98>Amoxicillin 500 mg, x < 5</text>\n"
        "<unordered_list><list_item><loc_60><loc_100><loc_420><loc_108>Na 140</list_item>\n"
        "<list_item><loc_60><loc_109><loc_420><loc_118>K 4.1</list_item>\n</unordered_list>\n"
        "<otsl><loc_57><loc_120><loc_420><loc_160><caption><loc_57><loc_115><loc_420><loc_119>Table 1</caption>"
        "<ched>Test<ched>Value<nl><fcel>Na<fcel>140<nl></otsl>\n"
        "<picture><loc_51><loc_168><loc_228><loc_254><bar_chart></picture>\n"
        "<checkbox_selected><loc_51><loc_268><loc_228><loc_274>fasting</checkbox_selected>\n"
        "<formula><loc_51><loc_278><loc_228><loc_284>a^2</formula>\n",
        (
            (BlockKind.HEADER, "St. Mary & Co"),
            *(_HEADING, _TEXT, _LIST),
            (BlockKind.CAPTION, "Table 1"),
            _TABLE,
            (BlockKind.TEXT, "☑ fasting"),
            (BlockKind.FORMULA, "$$a^2$$"),
        ),
        has_places=True,
    ),
)
