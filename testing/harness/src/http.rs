//! A client of an HTTP port: one request, one connection, and the answer as it came.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::DEADLINE;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// its status code
    pub status: u16,
    /// names in lower case, and values
    pub headers: Vec<(String, String)>,
    /// all that came after them
    pub body: String,
}

impl HttpAnswer {
    /// The value of a header, by its name in lower case; empty if it is absent.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// Reads an answer until the server closes the connection.
    pub fn read(mut from: impl Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not an answer: {text:?}"));
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(bad)?;
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|status| status.parse().ok()).ok_or_else(bad)?;
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let mut answer = Self {
            status,
            headers: lines.filter_map(header).collect(),
            body: body.to_owned(),
        };
        if answer.header("transfer-encoding") == "chunked" {
            answer.body = joined(&answer.body).ok_or_else(bad)?;
        }
        Ok(answer)
    }
}

/// The body without the lengths of its chunks (RFC 9112, 7.1).
fn joined(mut chunks: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (len, rest) = chunks.split_once("\r\n")?;
        let len = usize::from_str_radix(len, 16).ok()?;
        if len == 0 {
            return Some(body);
        }
        body.push_str(rest.get(..len)?);
        chunks = rest.get(len + 2..)?;
    }
}

/// Asks for a path, with this `Accept`, over TCP.
pub fn http_get(address: SocketAddr, path: &str, accept: &str) -> io::Result<HttpAnswer> {
    let mut stream = TcpStream::connect_timeout(&address, DEADLINE)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    http_over(
        &mut stream,
        &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"),
    )
}

/// Sends these bytes, and reads the answer until the server closes.
pub fn http_over(mut stream: impl Read + Write, request: &str) -> io::Result<HttpAnswer> {
    stream.write_all(request.as_bytes())?;
    HttpAnswer::read(stream)
}
