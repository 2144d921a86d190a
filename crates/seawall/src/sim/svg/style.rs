//! Colours and type. The hues are Okabe and Ito's, which are distinguishable under every common colour blindness; each has a brighter
//! variant for dark pages.

use std::fmt::Write as _;

const HUES: [(&str, &str); 7] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8a3d"),
    ("#009e73", "#2fd0a0"),
    ("#cc79a7", "#eaa3c9"),
    ("#b07d00", "#f0c040"),
    ("#4a4a4a", "#c8c8c8"),
    ("#6a51a3", "#b3a2e0"),
];

/// The number of distinct colours.
pub(super) const COLOURS: usize = HUES.len();

struct Tones {
    paper: &'static str,
    ink: &'static str,
    muted: &'static str,
    grid: &'static str,
    shade: &'static str,
    good: &'static str,
    bad: &'static str,
}

const LIGHT: Tones =
    Tones { paper: "#fcfcfa", ink: "#1d2329", muted: "#5d6770", grid: "#e3e6e8", shade: "#f3dfd3", good: "#00704f", bad: "#b8450a" };
const DARK: Tones =
    Tones { paper: "#14181c", ink: "#e8ecef", muted: "#9aa5ae", grid: "#2b3238", shade: "#3d2a20", good: "#2fd0a0", bad: "#ff8a3d" };

pub(super) fn css() -> String {
    let mut css = String::from(
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:12px}\
         .title{font-size:22px;font-weight:700}.subtitle{font-size:14px}.name{font-size:14px;font-weight:600}\
         .note{font-size:13px}.end{font-size:13px;font-weight:600}\
         .line{fill:none;stroke-width:2.25;stroke-linejoin:round;stroke-linecap:round}.bars{fill:none}\
         .area{stroke:none;opacity:.16}.stack{stroke:none}.thin{fill:none;stroke-width:1.5;stroke-linejoin:round}\
         .level{stroke-dasharray:5 4;stroke-width:1.25;fill:none}.grid,.axis{stroke-width:1}",
    );
    css += &tones(&LIGHT, |(light, _)| light);
    let _ = write!(css, "@media (prefers-color-scheme:dark){{{}}}", tones(&DARK, |(_, dark)| dark));
    css
}

fn tones(tones: &Tones, pick: fn((&'static str, &'static str)) -> &'static str) -> String {
    let Tones { paper, ink, muted, grid, shade, good, bad } = tones;
    let mut css = format!(
        ".paper{{fill:{paper}}}.title,.name{{fill:{ink}}}.subtitle,.tick,.label,.neutral{{fill:{muted}}}\
         .grid{{stroke:{grid}}}.axis,.level{{stroke:{muted}}}.shade{{fill:{shade}}}.good{{fill:{good}}}.bad{{fill:{bad}}}"
    );
    for (index, hue) in HUES.into_iter().enumerate() {
        let colour = pick(hue);
        let _ = write!(css, ".s{index}{{stroke:{colour}}}.f{index}{{fill:{colour}}}");
    }
    css
}

pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            other => escaped.push(other),
        }
    }
    escaped
}
