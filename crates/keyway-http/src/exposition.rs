//! Numbers as Prometheus reads them: OpenMetrics 1.0 or the older text format, and the choice between them.
//!
//! OpenMetrics: <https://prometheus.io/docs/specs/om/open_metrics_spec/>; the text format:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>. The two differ in the names of counters (OpenMetrics leaves `_total` out in the
//! description of a counter), in the unit and in the last line, which only OpenMetrics has.

use std::fmt::{Display, Write};

/// Which format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0
    OpenMetrics,
    /// the text format, version 0.0.4
    Text,
}

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// it only grows, and starts again at 0 with the server; its name ends in `_total`
    Counter,
    /// it goes up and down
    Gauge,
    /// events by the size of a value, in buckets: its samples are written by [`Exposition::histogram`]
    Histogram,
}

/// Suffixes that name a unit.
const UNITS: [&str; 2] = ["bytes", "seconds"];

impl Format {
    /// The format that a client prefers by its `Accept` header (RFC 9110, 12.5.1): OpenMetrics if the client names it and does not prefer
    /// the text format to it, otherwise the text format, which everything reads.
    pub fn asked_for(accept: &str) -> Self {
        let (mut open_metrics, mut text) = (0, 0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let mut quality = 1000;
            let mut is_known_version = true;
            for (parameter, value) in parts.filter_map(|part| part.split_once('=')) {
                match parameter.trim().to_ascii_lowercase().as_str() {
                    "q" => quality = thousandths(value.trim()),
                    "version" => is_known_version = value.trim().trim_matches('"') == "1.0.0",
                    _ => {}
                }
            }
            match name.as_str() {
                "application/openmetrics-text" if is_known_version => open_metrics = open_metrics.max(quality),
                "text/plain" => text = text.max(quality),
                _ => {}
            }
        }
        if open_metrics > 0 && open_metrics >= text {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    /// The `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A quality of RFC 9110, "0" to "1" with up to three decimals, in thousandths. What is not one is 0.
fn thousandths(text: &str) -> u32 {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_well_formed = decimals.len() <= 3 && decimals.bytes().all(|byte| byte.is_ascii_digit());
    match whole {
        "1" => 1000,
        "0" if is_well_formed => format!("{decimals:0<3}").parse().unwrap_or(0),
        _ => 0,
    }
}

/// A page of metrics that is being written.
#[derive(Clone, Debug)]
pub struct Exposition {
    format: Format,
    text: String,
    /// the name of the present family's samples
    name: &'static str,
}

impl Exposition {
    /// An empty page.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            text: String::new(),
            name: "",
        }
    }

    /// Begins the next metric. The unit is what its name ends in, if that is one.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> &mut Self {
        self.name = name;
        let base = match kind {
            Kind::Counter => name.strip_suffix("_total").unwrap_or(name),
            Kind::Gauge | Kind::Histogram => name,
        };
        let is_unit = |unit: &&&str| base.strip_suffix(**unit).is_some_and(|rest| rest.ends_with('_'));
        let unit = UNITS.iter().find(is_unit).copied();
        let described = match self.format {
            Format::OpenMetrics => base,
            Format::Text => name,
        };
        let word = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = escaped(help, self.format == Format::OpenMetrics);
        let _ = write!(self.text, "# HELP {described} {help}\n# TYPE {described} {word}\n");
        if self.format == Format::OpenMetrics
            && let Some(unit) = unit
        {
            let _ = writeln!(self.text, "# UNIT {base} {unit}");
        }
        self
    }

    /// A number of the present metric.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.suffixed("", labels, value)
    }

    /// The samples of the present metric, a histogram, for these labels. `buckets`: upper bounds, as the format writes numbers, in rising
    /// order, with the number of events in each bucket; `count`: all events, those above the last bound too; `sum`: of their values.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (String, u64)>,
        count: u64,
        sum: impl Display,
    ) -> &mut Self {
        let mut below = 0;
        for (bound, events) in buckets {
            // Counts that a damaged region gives may be anything.
            below = u64::saturating_add(below, events);
            self.suffixed("_bucket", &[labels, &[("le", bound.as_str())]].concat(), below);
        }
        self.suffixed("_bucket", &[labels, &[("le", "+Inf")]].concat(), count)
            .suffixed("_sum", labels, sum)
            .suffixed("_count", labels, count)
    }

    fn suffixed(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        for (index, (name, text)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{name}=\"{}\"", escaped(text, true));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }

    /// The page.
    pub fn end(mut self) -> Vec<u8> {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text.into_bytes()
    }
}

/// Backslashes and line ends, and where they have a meaning also quotes, as the formats write them.
fn escaped(text: &str, quotes: bool) -> String {
    let mut escaped = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes {
        escaped = escaped.replace('"', "\\\"");
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_format_that_it_prefers() {
        // Prometheus 2.42 and 3.5, the exporter's own scraper, curl and a browser.
        for (accept, format) in [
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            ("text/plain;version=0.0.4;q=1,*/*;q=0.1", Format::Text),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            // Only the binary format, which does not exist here, or something else.
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
                Format::Text,
            ),
            ("*/*", Format::Text),
            ("", Format::Text),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Format::Text),
            ("application/openmetrics-text; q=0.3, text/plain; q=0.7", Format::Text),
            ("application/openmetrics-text; q=0", Format::Text),
            ("application/openmetrics-text; version=2.0.0", Format::Text),
            (
                "Application/OpenMetrics-Text; Version=\"1.0.0\"; Q=0.001",
                Format::OpenMetrics,
            ),
        ] {
            assert_eq!(Format::asked_for(accept), format, "{accept}");
        }
    }

    #[test]
    fn a_histogram_counts_what_is_not_above_each_bound() {
        for format in [Format::Text, Format::OpenMetrics] {
            let mut page = Exposition::new(format);
            let buckets = [("0.5".to_owned(), 2), ("1.0".to_owned(), 3)];
            page.family("time_seconds", Kind::Histogram, "Times")
                .histogram(&[("door", "x")], buckets.into_iter(), 9, "7.25");
            let page = String::from_utf8(page.end()).unwrap();
            let samples: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
            assert_eq!(
                samples,
                [
                    "time_seconds_bucket{door=\"x\",le=\"0.5\"} 2",
                    "time_seconds_bucket{door=\"x\",le=\"1.0\"} 5",
                    "time_seconds_bucket{door=\"x\",le=\"+Inf\"} 9",
                    "time_seconds_sum{door=\"x\"} 7.25",
                    "time_seconds_count{door=\"x\"} 9",
                ]
            );
            assert!(page.contains("# TYPE time_seconds histogram\n"));
        }
    }

    #[test]
    fn qualities_are_thousandths() {
        for (text, quality) in [
            ("1", 1000),
            ("1.0", 1000),
            ("0.5", 500),
            ("0.001", 1),
            ("0", 0),
            ("x", 0),
            ("0.x", 0),
            ("-1", 0),
        ] {
            assert_eq!(thousandths(text), quality, "{text}");
        }
    }

    #[test]
    fn both_formats_are_written_as_specified() {
        let page = |format| {
            let mut page = Exposition::new(format);
            page.family("read_bytes_total", Kind::Counter, "Bytes\nread \\ \"all\"")
                .sample(&[("path", "a\"b\\c\n"), ("door", "x")], 7)
                .family("age_seconds", Kind::Gauge, "Age")
                .sample(&[], 1.5)
                .family("items", Kind::Gauge, "Items");
            String::from_utf8(page.end()).unwrap()
        };
        assert_eq!(
            page(Format::OpenMetrics),
            "# HELP read_bytes Bytes\\nread \\\\ \\\"all\\\"\n# TYPE read_bytes counter\n# UNIT read_bytes bytes\n\
             read_bytes_total{path=\"a\\\"b\\\\c\\n\",door=\"x\"} 7\n\
             # HELP age_seconds Age\n# TYPE age_seconds gauge\n# UNIT age_seconds seconds\nage_seconds 1.5\n\
             # HELP items Items\n# TYPE items gauge\n# EOF\n"
        );
        assert_eq!(
            page(Format::Text),
            "# HELP read_bytes_total Bytes\\nread \\\\ \"all\"\n# TYPE read_bytes_total counter\n\
             read_bytes_total{path=\"a\\\"b\\\\c\\n\",door=\"x\"} 7\n\
             # HELP age_seconds Age\n# TYPE age_seconds gauge\nage_seconds 1.5\n\
             # HELP items Items\n# TYPE items gauge\n"
        );
    }
}
