//! A Chromium without a window, spoken to by its DevTools protocol through pipes: opens a page at a width, light or dark, evaluates
//! expressions in it, takes its picture, and keeps what it complains about.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine;
use serde_json::{Value, json};

/// Longest that the browser may take for anything; it takes a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// Browsers of this process so far: each has a folder of its own.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// The browser, ended with its handle.
pub struct Browser {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<Value>,
    profile: PathBuf,
    number: u64,
    events: Vec<Value>,
}

/// A page that is open.
pub struct Page<'a> {
    browser: &'a mut Browser,
    session: String,
    target: String,
    url: String,
}

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Appearance {
    /// of the window, pixels
    pub width: u32,
    /// as a reader who prefers dark pages sees it
    pub dark: bool,
}

impl Browser {
    /// `None` if none is installed.
    pub fn start() -> Option<Self> {
        const NAMES: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
        let answers = |name: &&str| {
            Command::new(name)
                .arg("--version")
                .output()
                .is_ok_and(|output| output.status.success())
        };
        let program = NAMES.into_iter().find(answers)?;
        let number = STARTED.fetch_add(1, Relaxed);
        let profile = std::env::temp_dir().join(format!("keyway-page-{}-{number}", std::process::id()));
        // The protocol is spoken on descriptors 3 and 4 (--remote-debugging-pipe); the sandbox does not work as root.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", program])
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                "--remote-debugging-pipe",
            ])
            .args([
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, answers) = channel();
        let mut pipe = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            loop {
                let mut message = Vec::new();
                match pipe.read_until(0, &mut message) {
                    Ok(1..) if message.pop() == Some(0) => {}
                    _ => return,
                }
                if send.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let requests = child.stdin.take().unwrap();
        Some(Self {
            child,
            requests,
            answers,
            profile,
            number: 0,
            events: Vec::new(),
        })
    }

    /// Opens a file.
    pub fn open(&mut self, file: &Path, look: Appearance) -> Page<'_> {
        self.visit(&format!("file://{}", file.display()), look)
    }

    /// Opens the page at a URL, which may ask for what is below that.
    pub fn visit(&mut self, url: &str, look: Appearance) -> Page<'_> {
        let target = self.call(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let target = target["targetId"].as_str().unwrap().to_owned();
        let attached = self.call(None, "Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        let session = attached["sessionId"].as_str().unwrap().to_owned();
        self.events.clear();
        let mut page = Page {
            browser: self,
            session,
            target,
            url: url.to_owned(),
        };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        let size = json!({ "width": look.width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        page.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = if look.dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        page.call("Emulation.setEmulatedMedia", features);
        page.call("Page.navigate", json!({ "url": url }));
        page.wait_for("Page.loadEventFired");
        page
    }

    fn call(&mut self, session: Option<&str>, method: &str, params: Value) -> Value {
        self.number += 1;
        let mut request = json!({ "id": self.number, "method": method, "params": params });
        if let Some(session) = session {
            request["sessionId"] = session.into();
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let answer = self.receive(method);
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn receive(&self, why: &str) -> Value {
        let answer = self.answers.recv_timeout(PATIENCE);
        answer.unwrap_or_else(|error| panic!("the browser does not answer {why}: {error}"))
    }
}

impl Drop for Browser {
    /// It ends by itself, with all its processes, so that none of them writes to the folder any more; or it is made to.
    fn drop(&mut self) {
        let closing = self.requests.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        while closing.is_ok() && self.answers.recv_timeout(PATIENCE).is_ok() {}
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

impl Page<'_> {
    fn call(&mut self, method: &str, params: Value) -> Value {
        let session = self.session.clone();
        self.browser.call(Some(&session), method, params)
    }

    fn wait_for(&mut self, event: &str) {
        while !self.browser.events.iter().any(|seen| seen["method"] == event) {
            let answer = self.browser.receive(event);
            self.browser.events.push(answer);
        }
    }

    /// The value of an expression.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let answer = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(answer["exceptionDetails"].is_null(), "{answer:#}");
        answer["result"]["value"].clone()
    }

    /// The whole page.
    pub fn picture(&mut self) -> Picture {
        let size = self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        let clip = json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
        let shot = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let answer = self.call("Page.captureScreenshot", shot);
        let png = base64::engine::general_purpose::STANDARD.decode(answer["data"].as_str().unwrap());
        Picture::new(png.unwrap())
    }

    /// Presses a key, by its name in the DOM's `KeyboardEvent.key`, with the character that it types, if any.
    pub fn press(&mut self, key: &str, types: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            _ => 0,
        };
        for (kind, text) in [("keyDown", types), ("keyUp", "")] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// The address of this page, or one below it; or data that is in it.
    fn is_own(&self, url: &Value) -> bool {
        let url = url.as_str().unwrap_or_default();
        url == self.url || url.starts_with("data:") || self.url.ends_with('/') && url.starts_with(&self.url)
    }

    /// What it wrote to its console, what was refused, and what it wanted besides itself.
    pub fn complaints(&self) -> Vec<String> {
        let complaint = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(format!("exception: {}", params["exceptionDetails"]["text"])),
                "Runtime.consoleAPICalled" => Some(format!("console: {}", params["args"])),
                "Log.entryAdded" => Some(format!("log: {}", params["entry"]["text"])),
                "Network.requestWillBeSent" if !self.is_own(&params["request"]["url"]) => {
                    Some(format!("it asks for {}", params["request"]["url"]))
                }
                _ => None,
            }
        };
        self.browser.events.iter().filter_map(complaint).collect()
    }

    /// Away with it.
    pub fn close(self) {
        self.browser
            .call(None, "Target.closeTarget", json!({ "targetId": self.target }));
    }
}

/// A picture of a page.
pub struct Picture {
    /// as it is written to a file
    pub png: Vec<u8>,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn new(png: Vec<u8>) -> Self {
        let mut reader = png::Decoder::new(std::io::Cursor::new(&png)).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        let step = info.color_type.samples();
        let pixels = bytes[..info.buffer_size()]
            .chunks_exact(step)
            .map(|pixel| [pixel[0], pixel[1], pixel[2]]);
        Self {
            pixels: pixels.collect(),
            png,
        }
    }

    /// How many different ones it has.
    pub fn colours(&self) -> usize {
        self.pixels.iter().collect::<HashSet<_>>().len()
    }

    /// How many pixels have this one.
    pub fn count(&self, colour: [u8; 3]) -> usize {
        self.pixels.iter().filter(|pixel| **pixel == colour).count()
    }

    /// The colour of the upper left corner.
    pub fn background(&self) -> [u8; 3] {
        self.pixels[0]
    }
}
