//! The page of the HTTP port in a browser: its numbers are those of `stats`, its charts move, it fits a phone in light and dark, the
//! keyboard reaches everything, what clients choose stays text, and nothing is asked for elsewhere. Pictures are left in the folder for
//! tests' files, for people.
//! Guards: P44

use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use browser::{Appearance, Browser, Page};
use harness::{DEADLINE, Kind, Scratch, ServeOptions, Transport, keyway_binary, skip, wait_until};
use monitoring::Monitored;
use serde_json::Value;

const LOOKS: [Appearance; 6] = [
    Appearance { width: 360, dark: false },
    Appearance { width: 360, dark: true },
    Appearance { width: 800, dark: false },
    Appearance {
        width: 1280,
        dark: false,
    },
    Appearance { width: 1280, dark: true },
    Appearance { width: 1920, dark: true },
];
const WIDE: Appearance = Appearance {
    width: 1280,
    dark: false,
};

/// What sticks out to the right of the window, and texts that are smaller than 10 pixels: by tag and text. Texts for screen readers only
/// are no matter.
const STICKS_OUT: &str = "
    [...document.body.querySelectorAll('*')]
        .filter(e => !e.closest('.hidden, script, noscript, option') && e.getClientRects().length)
        .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 || e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
            || parseFloat(getComputedStyle(e).fontSize) < 10)
        .map(e => e.tagName + ': ' + e.textContent.slice(0, 40))
        .concat(document.documentElement.scrollWidth > innerWidth ? ['the page: ' + document.documentElement.scrollWidth] : [])";

/// The browser, or nothing with a reason.
fn browser() -> Option<Browser> {
    if !Kind::keyway_is_wanted() {
        return None;
    }
    let browser = Browser::start();
    if browser.is_none() {
        skip("the page in a browser", "no Chromium is installed");
    }
    browser
}

fn visit<'b>(browser: &'b mut Browser, monitored: &Monitored, look: Appearance) -> Page<'b> {
    let mut page = browser.visit(&format!("http://{}/", monitored.http), look);
    shows(&mut page, "document.querySelector('#status').textContent === 'live'");
    page
}

/// Waits until an expression is true in the page.
fn shows(page: &mut Page<'_>, expression: &str) {
    wait_until(expression, DEADLINE, || {
        (page.evaluate(expression) == Value::Bool(true)).then_some(())
    });
}

fn number(page: &mut Page<'_>, expression: &str) -> i64 {
    let value = page.evaluate(expression);
    value.as_i64().unwrap_or_else(|| panic!("{expression}: {value}"))
}

/// Some sets, hits, misses and deletes.
fn use_the_cache(monitored: &Monitored) {
    let mut wire = monitored.server.connect(Transport::Tcp);
    for n in 0..1234 {
        assert_eq!(wire.ask(&format!("set key-{n} 0 0 1\r\nx")).expect("an answer"), "STORED");
    }
    for _ in 0..4 {
        assert_eq!(wire.get(false, &["key-1"]).expect("an answer").len(), 1);
    }
    assert!(wire.get(false, &["absent"]).expect("an answer").is_empty());
    assert_eq!(wire.ask("delete key-9").expect("an answer"), "DELETED");
    assert_eq!(wire.ask("mg key-2 v").expect("an answer"), "VA 1");
}

#[test]
fn the_page_fits_every_screen_in_light_and_dark() {
    let Some(mut browser) = browser() else { return };
    let monitored = Monitored::start(&ServeOptions::default());
    use_the_cache(&monitored);
    for look in LOOKS {
        let mut page = visit(&mut browser, &monitored, look);
        shows(&mut page, "document.querySelectorAll('#c-ops .series').length > 0");
        assert_eq!(page.evaluate(STICKS_OUT), Value::Array(Vec::new()), "{look:?}");
        let picture = page.picture();
        assert!(picture.colours() > 100, "{look:?}");
        let is_dark = picture.background().iter().all(|part| *part < 100);
        assert_eq!(is_dark, look.dark, "{look:?}: {:?}", picture.background());
        let name = format!("page-{}-{}.png", look.width, if look.dark { "dark" } else { "light" });
        std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), picture.png).expect("a file for tests");
        // The tables in the place of charts fit, too.
        page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })");
        shows(&mut page, "document.querySelectorAll('figure details td').length > 0");
        assert_eq!(page.evaluate(STICKS_OUT), Value::Array(Vec::new()), "{look:?} with tables");
        // The other theme by the switch, whatever the system prefers.
        let other = if look.dark { "light" } else { "dark" };
        page.evaluate(&format!(
            "{{ const theme = document.querySelector('#theme'); theme.value = '{other}'; theme.dispatchEvent(new Event('change')); }}"
        ));
        let is_dark = page.picture().background().iter().all(|part| *part < 100);
        assert_ne!(is_dark, look.dark, "{look:?} after the switch");
        page.evaluate("localStorage.clear()");
        assert_eq!(page.complaints(), Vec::<String>::new());
        page.close();
    }
}

#[test]
fn numbers_are_those_of_stats_and_charts_move() {
    let Some(mut browser) = browser() else { return };
    let monitored = Monitored::start(&ServeOptions::default());
    use_the_cache(&monitored);
    let mut wire = monitored.server.connect(Transport::Tcp);
    let mut page = visit(&mut browser, &monitored, WIDE);

    // Nothing changes but the requests for statistics.
    let stats = wire.stats("").expect("an answer");
    let shown = page.evaluate("document.querySelectorAll('[data-stat]').length");
    let mut compared = 0;
    for (name, value) in &stats {
        let of = format!("document.querySelector('[data-stat=\"{name}\"]')");
        if page.evaluate(&format!("{of} !== null")) == Value::Bool(true) {
            shows(
                &mut page,
                &format!("{of}.textContent.replaceAll('\u{202f}', '') === '{value}'"),
            );
            compared += 1;
        }
    }
    assert!(compared >= 20, "{compared} of {shown} counters: {stats:?}");
    let text = page.evaluate("document.body.innerText");
    let text = text.as_str().expect("a text");
    for part in [
        "1\u{202f}233",
        "83.3\u{202f}%",
        "Time inside the server, p99",
        "one in 256 is measured",
        "items, one after the other",
        "Doors",
        "network",
        "library",
        "Memory",
        "Connections",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Of several pages of several servers each names its own.
    let address = monitored.server.address().to_string();
    shows(&mut page, &format!("document.title.includes('{address}')"));
    let region = format!("region {}", monitored.server.region().display());
    shows(
        &mut page,
        &format!("document.querySelector('#about').textContent.includes('{region}')"),
    );
    let hidden = "[...document.querySelectorAll('[hidden]')].every(e => getComputedStyle(e).display === 'none')";
    assert_eq!(page.evaluate(hidden), Value::Bool(true), "what is hidden is seen");
    let rows = |kind: &str| monitored.server.connect(Transport::Tcp).stats(kind).expect("an answer");
    let state: Value = serde_json::from_str(&monitored.get("/state.json").body).expect("JSON");
    let latencies: Vec<(String, String)> = state["latencies"]
        .as_array()
        .expect("rows")
        .iter()
        .flat_map(|row| {
            let name = |what: &str| {
                format!(
                    "{}:{}:{what}",
                    row["door"].as_str().unwrap_or("?"),
                    row["verb"].as_str().unwrap_or("?")
                )
            };
            ["measured", "mean_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns"].map(|what| (name(what), row[what].to_string()))
        })
        .filter(|(name, _)| !name.contains(":other:"))
        .collect();
    let mut expected = rows("latency");
    // Requests for statistics are measured, too.
    expected.retain(|(name, _)| !name.contains(":other:"));
    assert_eq!(latencies, expected);
    assert!(
        latencies.contains(&("meta:get:measured".to_owned(), "1".to_owned())),
        "{latencies:?}"
    );
    let segments = state["region"]["segments"].as_object().expect("numbers").values();
    let segments: u64 = segments.filter_map(Value::as_u64).sum();
    assert_eq!(segments, monitored.server.stat("keyway_segments"));
    // One digit for each segment of this small region.
    let map = state["region"]["segment_map"].as_str().expect("digits");
    let of_use = |digit: char| map.chars().filter(|known| *known == digit).count();
    for (digit, name) in [('0', "free"), ('2', "log"), ('4', "index")] {
        assert_eq!(state["region"]["segments"][name], of_use(digit), "{name}");
    }
    assert_eq!(
        (map.len() as u64, &state["region"]["segments_per_part"]),
        (segments, &1.into())
    );
    let process = &state["region"]["processes"][0];
    assert_eq!(
        (process["pid"].as_u64(), process["door"].as_str()),
        (Some(monitored.server.pid().into()), Some("server"))
    );

    // Charts follow the load, whatever the machine does.
    for (door, request, answer) in [("text", "delete none", "NOT_FOUND"), ("meta", "mg none", "EN")] {
        let top = "Math.min(...[...document.querySelectorAll('#c-ops [data-series=\"DOOR\"]')].flatMap(path => \
                   [...path.getAttribute('d').matchAll(/[ML]\\S+ ([0-9.]+)/g)].slice(-20).map(point => Number(point[1]))), 170) < 100"
            .replace("DOOR", door);
        wait_until("the chart moves", DEADLINE, || {
            for _ in 0..300 {
                assert_eq!(wire.ask(request).expect("an answer"), answer);
            }
            (page.evaluate(&top) == Value::Bool(true)).then_some(())
        });
    }
    let painted = "{ const c = document.querySelector('canvas'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; \
                   d.filter((part, i) => i % 4 === 3 && part).length }";
    assert!(number(&mut page, painted) > 100, "the heat map has no heat");

    // Paused it stands still, and then it catches up.
    page.evaluate("document.querySelector('#pause').click()");
    let round = number(&mut page, "Number(document.body.dataset.round)");
    let asked = |monitored: &Monitored| {
        monitored
            .numbers()
            .of("keyway_http_requests_total{path=\"/state.json\",status=\"200\"}")
    };
    wait_until("no request is on its way", DEADLINE, || {
        let before = asked(&monitored);
        std::thread::sleep(std::time::Duration::from_millis(1500));
        (asked(&monitored).to_bits() == before.to_bits()).then_some(())
    });
    assert!(number(&mut page, "Number(document.body.dataset.round)") <= round + 1);
    page.evaluate("document.querySelector('#pause').click()");
    shows(&mut page, &format!("Number(document.body.dataset.round) > {}", round + 2));
    assert_eq!(page.complaints(), Vec::<String>::new());

    // It says so when its server ends, and goes on with the next one.
    drop(monitored);
    shows(
        &mut page,
        "document.querySelector('#status').textContent.startsWith('no answer')",
    );
    // Its numbers are those of before, and look so.
    shows(&mut page, "getComputedStyle(document.querySelector('main')).opacity < 0.5");
    page.close();
}

#[test]
fn the_keyboard_reaches_everything() {
    let Some(mut browser) = browser() else { return };
    let monitored = Monitored::start(&ServeOptions::default());
    use_the_cache(&monitored);
    let mut page = visit(&mut browser, &monitored, WIDE);
    shows(&mut page, "steps[0].length > 3");
    // Of the buttons of a group, the chosen one is reached by Tab and the others by the arrows.
    page.evaluate(
        "reached = new Set(), wanted = [...document.querySelectorAll('button, select, summary, a, [tabindex], input:checked')]
            .filter(element => element.getClientRects().length);
         document.addEventListener('focusin', event => {
            const looks = getComputedStyle(event.target.type === 'radio' ? event.target.closest('label') : event.target);
            if (looks.outlineStyle !== 'none') reached.add(event.target); })",
    );
    let wanted = number(&mut page, "wanted.length");
    assert!(wanted > 20, "{wanted} controls");
    for _ in 0..wanted + 5 {
        page.press("Tab", "");
    }
    let missed = page.evaluate("wanted.filter(element => !reached.has(element)).map(element => element.outerHTML.slice(0, 80))");
    assert_eq!(missed, Value::Array(Vec::new()), "not reached, or without a mark");

    // What each is called, and what it does.
    let nameless = page.evaluate(
        "wanted.filter(e => !(e.getAttribute('aria-label') || e.closest('label')?.textContent || e.textContent).trim()).map(e => e.outerHTML)",
    );
    assert_eq!(nameless, Value::Array(Vec::new()));
    let untitled = "[...document.querySelectorAll('section')].filter(s => !document.getElementById(s.getAttribute('aria-labelledby'))?.textContent).length";
    assert_eq!(number(&mut page, untitled), 0);
    page.evaluate("document.querySelector('#c-ops .plot').focus()");
    page.press("ArrowLeft", "");
    page.press("ArrowLeft", "");
    let told = page.evaluate("document.querySelector('#c-ops [aria-live]').textContent");
    assert!(told.as_str().is_some_and(|told| told.contains(':')), "{told}");
    assert_eq!(
        page.evaluate("document.querySelector('#c-ops .tip').hidden"),
        Value::Bool(false)
    );
    page.evaluate("document.querySelector('#pause').focus()");
    page.press("Enter", "\r");
    shows(
        &mut page,
        "document.querySelector('#pause').getAttribute('aria-pressed') === 'true'",
    );
    page.evaluate("document.querySelector('#window input').focus()");
    page.press("ArrowRight", "");
    shows(
        &mut page,
        "document.querySelector('#window :checked').value === '1' && chosen === 1",
    );
    assert_eq!(page.complaints(), Vec::<String>::new());
    page.close();
}

/// Keys that would do harm as markup, in base64 as meta commands take them, and as they are shown.
const KEYS: [(&str, &str); 3] = [
    ("PHNjcmlwdD5oYWNrZWQ9MTwvc2NyaXB0Pg==", "<script>hacked=1</script>"),
    ("PGltZyBzcmM9eCBvbmVycm9yPWhhY2tlZD0xPg==", "<img src=x onerror=hacked=1>"),
    ("AQobWzMxbf/+gA==", "\\x01\\n\\x1b[31m\\xff\\xfe\\x80"),
];

/// Uses these keys until each is among the hot ones.
fn heat(monitored: &Monitored) -> Value {
    let mut wire = monitored.server.connect(Transport::Tcp);
    for (key, _) in KEYS {
        assert_eq!(wire.ask(&format!("ms {key} 1 b\r\nx")).expect("an answer"), "HD");
    }
    wait_until("the keys are hot", DEADLINE, || {
        for (key, _) in KEYS {
            for _ in 0..300 {
                assert_eq!(wire.ask(&format!("mg {key} b")).expect("an answer"), "HD");
            }
        }
        let state: Value = serde_json::from_str(&monitored.get("/state.json").body).expect("JSON");
        let hot = state["hot"]["recent"]["gets"]
            .as_array()
            .is_some_and(|keys| keys.len() == KEYS.len());
        hot.then_some(state)
    })
}

/// A program that ends with its handle.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_clients_choose_stays_text() {
    let Some(mut browser) = browser() else { return };
    let scratch = Scratch::new();
    let options = ServeOptions {
        region: Some(scratch.join("region")),
        keyway_arguments: vec!["--http-keys".into()],
        ..ServeOptions::default()
    };
    let monitored = Monitored::start(&options);
    // A program with a name that would do harm.
    let name = std::ffi::OsString::from_vec(b"<img src=x>\x01\xff".to_vec());
    let program = scratch.path().join(name);
    harness::copy_program(keyway_binary(), &program);
    let attached = Command::new(&program)
        .args(["hot", "--seconds", "3600", "--region"])
        .arg(monitored.server.region())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program");
    let _attached = Ended(attached);
    let mut page = visit(&mut browser, &monitored, WIDE);
    heat(&monitored);
    for (_, shown) in KEYS {
        let shown = serde_json::to_string(shown).expect("JSON");
        shows(
            &mut page,
            &format!("document.querySelector('#t-hot').textContent.includes({shown})"),
        );
    }
    // By prefix, the keys of one are added up, and a key without one stays as it is.
    let mut wire = monitored.server.connect(Transport::Tcp);
    for number in 0..500 {
        assert_eq!(wire.ask(&format!("mg app:{number} s")).expect("an answer"), "EN");
        assert_eq!(
            wire.ask(&format!("set app:{number} 0 0 1\r\nx")).expect("an answer"),
            "STORED"
        );
    }
    page.evaluate(
        "for (const [id, value] of [['hot-what', 'prefix'], ['hot-when', 'since_start']]) {
            const choice = document.getElementById(id);
            choice.value = value;
            choice.dispatchEvent(new Event('change'));
        }
        document.querySelector('#hot-by [value=sets]').click()",
    );
    wait_until("the prefix is hot", DEADLINE, || {
        for number in 0..500 {
            assert_eq!(
                wire.ask(&format!("set app:{number} 0 0 1\r\nx")).expect("an answer"),
                "STORED"
            );
        }
        let first = page.evaluate("document.querySelector('#t-hot tbody th')?.textContent ?? ''");
        let title = page.evaluate("document.querySelector('#t-hot thead th').textContent");
        (first == "app" && title == "Prefix").then_some(())
    });
    let shown = serde_json::to_string(KEYS[1].1).expect("JSON");
    page.evaluate("document.querySelector('#hot-by [value=gets]').click()");
    shows(
        &mut page,
        &format!("document.querySelector('#t-hot').textContent.includes({shown})"),
    );
    shows(
        &mut page,
        "document.querySelector('#t-clients').textContent.includes('<img src=x>??')",
    );
    assert_eq!(
        number(
            &mut page,
            "document.querySelectorAll('main img, main script, footer ~ img').length"
        ),
        0
    );
    assert_eq!(page.evaluate("typeof hacked"), "undefined");
    assert_eq!(page.evaluate(STICKS_OUT), Value::Array(Vec::new()));
    let picture = page.picture();
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("page-keys.png"), picture.png).expect("a file for tests");
    assert_eq!(page.complaints(), Vec::<String>::new());

    // Script that got into the page all the same would not run, and would not get anywhere.
    page.evaluate(
        "{ const script = document.createElement('script'); script.textContent = 'hacked = 1'; document.body.append(script); }",
    );
    assert_eq!(page.evaluate("typeof hacked"), "undefined");
    page.evaluate("fetch('http://127.0.0.1:9/').catch(() => { refused = true })");
    shows(&mut page, "typeof refused !== 'undefined'");
    let complaints = page.complaints().join("\n");
    assert!(
        complaints.contains("script-src") && complaints.contains("connect-src"),
        "{complaints}"
    );
    page.close();
}

#[test]
fn keys_are_hashes_unless_the_operator_shows_them() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let shown = |arguments: &[&str], memcached_command_line| {
        let monitored = Monitored::start(&ServeOptions {
            keyway_arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            memcached_command_line,
            ..ServeOptions::default()
        });
        let state = heat(&monitored);
        let keys = state["hot"]["recent"]["gets"].as_array().expect("keys").clone();
        assert!(
            keys.iter()
                .all(|key| key["hash"].as_str().is_some_and(|hash| hash.len() == 16)),
            "{keys:?}"
        );
        let named = keys.iter().filter(|key| key["key"].is_string()).count();
        assert_eq!(state["shows_keys"], Value::Bool(named > 0));
        assert_eq!(state.to_string().contains("hacked"), named > 0);
        named
    };
    assert_eq!(shown(&[], false), 0);
    assert_eq!(shown(&["--http-keys"], false), KEYS.len());
}
