//! Incremental splitter for JSON files. It passes on the values of the top-level object and the elements of its one
//! long list.
//!
//! A piece is buffered only until it is complete, so memory does not grow with the file. The splitter itself parses
//! only strings and brackets.

use crate::{MAX_PIECE_BYTES, TraceError};
use std::borrow::Cow;

/// Names of the parts of a format.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Name of the format, for messages.
    pub format: &'static str,
    /// Key of the list.
    pub list: &'static str,
    /// Singular name of a list element, for error messages. `units` is the plural.
    pub unit: &'static str,
    pub units: &'static str,
    /// Whether a file may consist of the list alone.
    pub may_be_bare: bool,
}

/// A piece of the file.
pub enum Piece<'a> {
    /// A value of the top-level object, with its key.
    Field(&'a str, &'a [u8]),
    /// An element of the list, and a function that returns the line on which it starts.
    Element(&'a [u8], &'a mut dyn FnMut() -> u64),
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Start,
    BeforeKey,
    Key,
    Colon,
    BeforeValue,
    Value,
    BeforeElement,
    Element,
    AfterElement,
    AfterValue,
    End,
}

/// Splitter of one file.
pub struct Splitter {
    layout: Layout,
    state: State,
    key: Vec<u8>,
    /// Bytes of the current piece from earlier chunks.
    piece: Vec<u8>,
    depth: u32,
    in_string: bool,
    is_escaped: bool,
    /// Whether the file is a bare list, which exporters of other devices write.
    is_list: bool,
    /// Number of lines before the chunk.
    lines: u64,
    /// Offsets of the chunk and of the piece in the file.
    at: u64,
    piece_at: u64,
    elements: u64,
    has_list: bool,
}

impl Splitter {
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            state: State::Start,
            key: Vec::new(),
            piece: Vec::new(),
            depth: 0,
            in_string: false,
            is_escaped: false,
            is_list: false,
            lines: 0,
            at: 0,
            piece_at: 0,
            elements: 0,
            has_list: false,
        }
    }

    /// Reads the next bytes of the file, and calls `on_piece` with each piece that ends in them.
    pub fn feed(
        &mut self,
        chunk: &[u8],
        on_piece: &mut dyn FnMut(Piece) -> Result<(), String>,
    ) -> Result<(), TraceError> {
        let mut from = 0;
        let mut index = 0;
        while index < chunk.len() {
            let byte = chunk[index];
            match self.state {
                State::Value | State::Element => {
                    let is_scalar_end = self.depth == 0 && !self.in_string && matches!(byte, b',' | b'}' | b']');
                    if is_scalar_end || self.is_last(byte) {
                        // A scalar ends before the next delimiter. Other values end with their last byte.
                        let end = if is_scalar_end { index } else { index + 1 };
                        self.hand_on(chunk, from..end, on_piece)?;
                        index = end;
                        continue;
                    }
                }
                State::Key if byte == b'"' => self.state = State::Colon,
                State::Key => {
                    self.key.push(byte);
                    if self.key.len() > 1000 {
                        return Err(self.not_this("a key of more than 1000 bytes", index));
                    }
                }
                _ if byte.is_ascii_whitespace() => {}
                State::Start if byte == b'{' => self.state = State::BeforeKey,
                State::Start if byte == b'[' && self.layout.may_be_bare => {
                    (self.is_list, self.has_list) = (true, true);
                    self.state = State::BeforeElement;
                }
                // Skips a byte order mark.
                State::Start if self.at + (index as u64) < 3 && matches!(byte, 0xef | 0xbb | 0xbf) => {}
                State::BeforeKey if byte == b'"' => {
                    self.key.clear();
                    self.state = State::Key;
                }
                State::BeforeKey | State::AfterValue if byte == b'}' => self.state = State::End,
                State::Colon if byte == b':' => self.state = State::BeforeValue,
                State::BeforeValue if byte == b'[' && self.key == self.layout.list.as_bytes() => {
                    self.has_list = true;
                    self.state = State::BeforeElement;
                }
                State::BeforeElement | State::AfterElement if byte == b']' => {
                    self.state = if self.is_list { State::End } else { State::AfterValue };
                }
                State::BeforeValue | State::BeforeElement if !matches!(byte, b',' | b'}' | b']' | b':') => {
                    self.state = if self.state == State::BeforeValue { State::Value } else { State::Element };
                    self.piece_at = self.at + index as u64;
                    (from, self.depth, self.in_string, self.is_escaped) = (index, 0, false, false);
                    continue;
                }
                State::AfterElement if byte == b',' => self.state = State::BeforeElement,
                State::AfterValue if byte == b',' => self.state = State::BeforeKey,
                _ => return Err(self.not_this(&format!("an unexpected {:?}", char::from(byte)), index)),
            }
            index += 1;
        }
        if matches!(self.state, State::Value | State::Element) {
            self.piece.extend_from_slice(&chunk[from..]);
            if self.piece.len() > MAX_PIECE_BYTES {
                return Err(self.not_this(&format!("a value of more than {MAX_PIECE_BYTES} bytes"), 0));
            }
        }
        self.at += chunk.len() as u64;
        self.lines += newlines(chunk);
        Ok(())
    }

    /// Checks that the file is complete.
    pub fn finish(&self) -> Result<(), TraceError> {
        let Layout { list, units, .. } = self.layout;
        match self.state {
            State::Start => Err(TraceError::Empty),
            State::End if self.has_list => Ok(()),
            State::End => Err(self.not_this(&format!("no list `{list}` in it"), 0)),
            _ if self.has_list => Err(TraceError::Truncated { at: self.at, seen: self.elements, unit: units }),
            _ => Err(self.not_this(&format!("it ends before a list `{list}`"), 0)),
        }
    }

    /// Returns whether `byte` ends the current piece, which is a string, an array or an object.
    fn is_last(&mut self, byte: u8) -> bool {
        if self.in_string {
            // JSON strings cannot contain newlines. A string with a newline therefore has a stray quote or backslash,
            // and ends here.
            self.in_string = byte != b'\n' && (self.is_escaped || byte != b'"');
            self.is_escaped = !self.is_escaped && byte == b'\\';
            return !self.in_string && self.depth == 0;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth -= 1;
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }

    fn hand_on(
        &mut self,
        chunk: &[u8],
        part: std::ops::Range<usize>,
        on_piece: &mut dyn FnMut(Piece) -> Result<(), String>,
    ) -> Result<(), TraceError> {
        let mut early = std::mem::take(&mut self.piece);
        let end = part.end;
        let whole = if early.is_empty() {
            &chunk[part]
        } else {
            early.extend_from_slice(&chunk[part]);
            &early
        };
        let is_element = self.state == State::Element;
        let lines = self.lines;
        let mut line = || 1 + lines + newlines(&chunk[..end]) - newlines(whole);
        let read = match (is_element, std::str::from_utf8(&self.key)) {
            (true, _) => on_piece(Piece::Element(whole, &mut line)),
            (false, Ok(key)) => on_piece(Piece::Field(key, whole)),
            (false, Err(error)) => Err(error.to_string()),
        };
        read.map_err(|what| {
            let (unit, number) = if is_element { (self.layout.unit, self.elements) } else { ("field", 0) };
            TraceError::Piece { unit, number, at: self.piece_at, what }
        })?;
        self.elements += u64::from(is_element);
        self.state = if is_element { State::AfterElement } else { State::AfterValue };
        early.clear();
        self.piece = early;
        Ok(())
    }

    fn not_this(&self, what: &str, index: usize) -> TraceError {
        TraceError::NotThis { format: self.layout.format, what: what.to_owned(), at: self.at + index as u64 }
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Repairs a damaged piece. Lone backslashes are escaped, control characters become spaces, words such as `inf` become
/// null, and invalid UTF-8 becomes the replacement character.
pub fn mended(text: &[u8]) -> Vec<u8> {
    let text: Cow<str> = String::from_utf8_lossy(text);
    let mut found = String::with_capacity(text.len() + 16);
    let (mut in_string, mut rest) = (false, text.chars().peekable());
    while let Some(one) = rest.next() {
        match one {
            '"' => {
                in_string = !in_string;
                found.push(one);
            }
            '\\' if in_string => {
                found.push(one);
                match rest.peek().copied() {
                    Some(next @ ('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't')) => {
                        rest.next();
                        found.push(next);
                    }
                    Some('u') if rest.clone().skip(1).take(4).filter(char::is_ascii_hexdigit).count() == 4 => {}
                    _ => found.push('\\'),
                }
            }
            _ if in_string => found.push(if one.is_control() { ' ' } else { one }),
            // The sign of -Infinity belongs to the word.
            _ if one.is_ascii_alphabetic() || (one == '-' && rest.peek().is_some_and(char::is_ascii_alphabetic)) => {
                let mut word = String::from(one);
                while let Some(&next) = rest.peek().filter(|next| next.is_ascii_alphanumeric()) {
                    word.push(next);
                    rest.next();
                }
                let is_known = matches!(&*word, "true" | "false" | "null");
                found.push_str(if is_known { &word } else { "null" });
            }
            _ => found.push(one),
        }
    }
    found.into_bytes()
}
