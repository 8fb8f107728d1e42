"""Korean medical pages with their exact text, drawn in a font that the caller has. People and values are invented."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

_A4: Final = (1240, 1754)
_DPI: Final = 150
_MARGIN: Final = 120
_PRINT: Final = (20, 20, 24)

_OPINION: Final = (
    "진료 소견서",
    "환자 성명: 홍길동   생년월일: 1968년 4월 12일   등록번호: 20241187",
    "진단명: 제2형 당뇨병 및 본태성 고혈압",
    "상기 환자는 최근 삼 개월간 식후 혈당이 상승하고 두통과 어지럼증을 호소하여 내원하였습니다.",
    "혈액 검사에서 당화혈색소 7.8 %, 공복 혈당 142 mg/dL로 확인되었으며 신장 기능은 정상 범위입니다.",
    "메트포르민 500 mg을 하루 두 번 아침과 저녁 식사 직후에 복용하도록 처방하였습니다.",
    "소금 섭취를 줄이고 하루 삼십 분 이상 걷기 운동을 권고합니다.",
    "위와 같이 진단하고 소견을 발급합니다.",
)
_DISCHARGE: Final = (
    "퇴원 요약지",
    "입원 기간 동안 폐렴으로 항생제 정맥 주사 치료를 받았으며 발열과 기침은 현저히 호전되었습니다.",
    "흉부 방사선 촬영에서 우측 하엽의 침윤이 감소하였고 산소 포화도는 실내 공기에서 정상으로 유지되었습니다.",
    "퇴원 후에는 처방된 경구 약을 빠짐없이 복용하고 충분한 수분을 섭취하시기 바랍니다.",
    "호흡 곤란이나 고열이 다시 나타나면 즉시 응급실로 내원하십시오.",
    "다음 외래 진료는 2026년 12월 3일 오전 10시 30분 호흡기내과입니다.",
    "보호자에게 퇴원 후 주의 사항을 설명하였고 이해하였음을 확인하였습니다.",
)
_NURSING: Final = (
    "간호 기록",
    "오전 여섯 시에 활력 징후를 측정하였으며 혈압과 맥박은 안정적입니다.",
    "환자는 밤사이 통증 없이 잘 잤으며 아침 식사를 모두 드셨습니다.",
    "수술 부위의 드레싱을 교환하였고 발적이나 삼출물은 관찰되지 않았습니다.",
    "보행기를 사용하여 복도를 두 차례 걸었으며 어지럼증은 호소하지 않았습니다.",
    "낙상 예방 교육을 시행하고 침대 난간을 올려 두었습니다.",
    "담당 의사에게 환자 상태를 보고하고 경과를 계속 관찰하기로 하였습니다.",
)
_RESULTS: Final = (
    ("검사 항목", "결과", "단위", "참고치"),
    ("혈색소", "13.2", "g/dL", "12.0-16.0"),
    ("공복 혈당", "142", "mg/dL", "70-99"),
    ("총콜레스테롤", "212", "mg/dL", "0-200"),
    ("중성지방", "168", "mg/dL", "0-150"),
    ("크레아티닌", "0.9", "mg/dL", "0.6-1.2"),
    ("요산", "5.4", "mg/dL", "3.0-7.0"),
)


@dataclass(frozen=True, kw_only=True)
class KoreanPage:
    name: str
    pixels: NDArray[np.uint8]
    text: str


def korean_pages(font: Path) -> tuple[KoreanPage, ...]:
    """Return six pages: prose of three sizes, a table of results, two columns."""
    return (
        _prose("opinion", _OPINION, font, 11),
        _prose("discharge", _DISCHARGE, font, 10),
        _prose("nursing", _NURSING, font, 12),
        _prose("opinion, small", _OPINION, font, 9),
        _table("results", _RESULTS, font, 11),
        _columns("two columns", (_NURSING[1:], _DISCHARGE[1:]), font, 10),
    )


class _Sheet:
    def __init__(self, font: Path, points: float) -> None:
        self.image = Image.new("RGB", _A4, "white")
        self.font = ImageFont.truetype(font, points * _DPI / 72)
        self.lines: list[str] = []
        self.y = float(_MARGIN)

    def put(self, text: str, left: float = _MARGIN) -> None:
        ImageDraw.Draw(self.image).text((left, self.y), text, fill=_PRINT, font=self.font)

    def paragraph(self, text: str, left: float = _MARGIN, width: float = _A4[0] - 2 * _MARGIN) -> None:
        for line in self.wrapped(text, width):
            self.put(line, left)
            self.lines.append(line)
            self.y += self.font.size * 1.6

    def wrapped(self, text: str, width: float) -> Iterator[str]:
        line = ""
        for word in text.split():
            longer = f"{line} {word}".strip()
            if line and self.font.getlength(longer) > width:
                yield line
                longer = word
            line = longer
        yield line

    def page(self, name: str) -> KoreanPage:
        return KoreanPage(name=name, pixels=np.asarray(self.image), text="\n".join(self.lines))


def _prose(name: str, paragraphs: tuple[str, ...], font: Path, points: float) -> KoreanPage:
    sheet = _Sheet(font, points)
    for paragraph in paragraphs:
        sheet.paragraph(paragraph)
        sheet.y += sheet.font.size * 0.3
    return sheet.page(name)


def _table(name: str, rows: tuple[tuple[str, ...], ...], font: Path, points: float) -> KoreanPage:
    sheet = _Sheet(font, points)
    for row in rows:
        for cell, left in zip(row, (_MARGIN, 480, 700, 900), strict=True):
            sheet.put(cell, left)
        sheet.lines.append(" ".join(row))
        sheet.y += sheet.font.size * 2
    return sheet.page(name)


def _columns(name: str, columns: tuple[tuple[str, ...], ...], font: Path, points: float) -> KoreanPage:
    sheet = _Sheet(font, points)
    for number, column in enumerate(columns):
        sheet.y = _MARGIN
        for paragraph in column:
            sheet.paragraph(paragraph, left=100 + 570 * number, width=470)
    return sheet.page(name)
