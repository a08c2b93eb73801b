//! The page of the HTTP port, as a browser shows it: nothing sticks out on a phone, light and dark, nothing is asked for elsewhere, and the
//! numbers are the server's. The pictures are left in the folder for tests' files, for people.

use std::path::Path;

use browser::{Appearance, Browser};
use harness::{Kind, Scratch, ServeOptions, Transport, skip};
use monitoring::Monitored;
use serde_json::Value;

const LOOKS: [Appearance; 4] = [
    Appearance { width: 390, dark: false },
    Appearance { width: 390, dark: true },
    Appearance {
        width: 1280,
        dark: false,
    },
    Appearance { width: 1280, dark: true },
];

/// What sticks out to the right of the window, and texts that are smaller than 10 pixels: by tag and text.
const STICKS_OUT: &str = "
    [...document.body.querySelectorAll('*')]
        .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 || e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
            || parseFloat(getComputedStyle(e).fontSize) < 10)
        .map(e => e.tagName + ': ' + e.textContent.slice(0, 40))
        .concat(document.documentElement.scrollWidth > innerWidth ? ['the page: ' + document.documentElement.scrollWidth] : [])";

#[test]
fn the_page_fits_a_phone_and_has_the_numbers() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let Some(mut browser) = Browser::start() else {
        return skip("the page in a browser", "no Chromium is installed");
    };
    let monitored = Monitored::start(&ServeOptions::default());
    let mut wire = monitored.server.connect(Transport::Tcp);
    for n in 0..1234 {
        assert_eq!(wire.ask(&format!("set key-{n} 0 0 1\r\nx")).expect("an answer"), "STORED");
    }
    for n in 0..4 {
        assert_eq!(wire.get(false, &["key-1"]).expect("an answer").len(), 1, "{n}");
    }
    assert!(wire.get(false, &["absent"]).expect("an answer").is_empty());
    let scratch = Scratch::new();
    let file = scratch.join("page.html");
    std::fs::write(&file, monitored.get("/").body).expect("a file in the scratch folder");
    for look in LOOKS {
        let mut page = browser.open(&file, look);
        assert_eq!(page.evaluate(STICKS_OUT), Value::Array(Vec::new()), "{look:?}");
        let text = page.evaluate("document.body.innerText");
        let text = text.as_str().expect("a text");
        for part in [
            "80.0 %",
            "1\u{202f}234",
            "Operations by door",
            "network",
            "library",
            "Memory",
            "Clients",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let picture = page.picture();
        assert!(picture.colours() > 10, "{look:?}");
        let is_dark = picture.background().iter().all(|part| *part < 100);
        assert_eq!(is_dark, look.dark, "{look:?}: {:?}", picture.background());
        let name = format!("page-{}-{}.png", look.width, if look.dark { "dark" } else { "light" });
        std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), picture.png).expect("a file for tests");
        assert_eq!(page.complaints(), Vec::<String>::new());
        page.close();
    }
}
