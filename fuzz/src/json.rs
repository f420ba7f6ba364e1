//! Mutants of JSON documents: a value is changed, moved or removed, and the rest is unchanged.

use gradtide_net::Seed;
use gradtide_net::seed::Stream;
use serde_json::{Map, Value};

const NUMBERS: [u64; 14] =
    [0, 1, 2, 3, 7, 255, 65_536, 1_000_000, u32::MAX as u64, 1 << 40, 1 << 62, i64::MAX as u64, 1 << 63, u64::MAX];

/// Returns a mutant of a document; `None` if the data is not JSON, or the mutant exceeds `most_bytes`.
pub fn mutated(data: &[u8], most_bytes: usize, seed: u64) -> Option<Vec<u8>> {
    let mut tree: Value = serde_json::from_slice(data).ok()?;
    let mut draw = Seed(seed).stream("mutate");
    for _ in 0..=draw.below(3) {
        let words = strings(&tree);
        let place = draw.below(count(&tree));
        change(at(&mut tree, place)?, &words, &mut draw);
    }
    written(&tree, most_bytes)
}

/// Returns a document with a value of `other`; `None` if one of them is not JSON, if they have no field in common, or
/// if the result exceeds `most_bytes`.
pub fn crossed(data: &[u8], other: &[u8], most_bytes: usize, seed: u64) -> Option<Vec<u8>> {
    let mut tree: Value = serde_json::from_slice(data).ok()?;
    let other: Value = serde_json::from_slice(other).ok()?;
    let mut draw = Seed(seed).stream("cross");
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    fields(&tree, &mut mine);
    fields(&other, &mut theirs);
    theirs.retain(|(key, value)| mine.iter().any(|(known, old)| known == key && old != value));
    if theirs.is_empty() {
        return None;
    }
    let (key, value) = theirs[draw.below(theirs.len() as u64) as usize];
    let alike = mine.iter().filter(|(known, _)| *known == key).count() as u64;
    let (key, value, mut skip) = (key.clone(), value.clone(), draw.below(alike));
    replace(&mut tree, &key, &value, &mut skip);
    written(&tree, most_bytes)
}

fn written(tree: &Value, most_bytes: usize) -> Option<Vec<u8>> {
    let text = serde_json::to_vec(tree).ok()?;
    (text.len() <= most_bytes).then_some(text)
}

/// Returns the number of values in a tree, including the tree itself.
fn count(tree: &Value) -> u64 {
    1 + match tree {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// Returns the value with index `place` in a depth-first traversal of the tree.
fn at(tree: &mut Value, place: u64) -> Option<&mut Value> {
    if place == 0 {
        return Some(tree);
    }
    let mut left = place - 1;
    let children: Vec<&mut Value> = match tree {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(fields) => fields.values_mut().collect(),
        _ => return None,
    };
    for child in children {
        let size = count(child);
        if left < size {
            return at(child, left);
        }
        left -= size;
    }
    None
}

fn strings(tree: &Value) -> Vec<String> {
    match tree {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(strings).collect(),
        Value::Object(fields) => fields.values().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

fn fields<'a>(tree: &'a Value, found: &mut Vec<(&'a String, &'a Value)>) {
    match tree {
        Value::Array(items) => items.iter().for_each(|item| fields(item, found)),
        Value::Object(map) => {
            for (key, value) in map {
                found.push((key, value));
                fields(value, found);
            }
        }
        _ => {}
    }
}

/// Replaces the value of the field with this name that follows `skip` others.
fn replace(tree: &mut Value, key: &str, value: &Value, skip: &mut u64) {
    match tree {
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, key, value, skip)),
        Value::Object(map) => {
            for (known, old) in map {
                if known == key {
                    if *skip == 0 {
                        *old = value.clone();
                        *skip = u64::MAX;
                        return;
                    }
                    *skip -= 1;
                }
                replace(old, key, value, skip);
            }
        }
        _ => {}
    }
}

fn change(value: &mut Value, words: &[String], draw: &mut Stream) {
    match value {
        Value::Null => *value = number(0, draw),
        Value::Bool(is) => *is = !*is,
        Value::Number(old) => *value = number(old.as_u64().unwrap_or_default(), draw),
        Value::String(text) => match draw.below(4) {
            0 => *text = words[draw.below(words.len() as u64) as usize].clone(),
            1 => *text = text.repeat(2),
            2 => text.push('\u{202e}'),
            _ => *value = Value::Null,
        },
        Value::Array(items) => change_items(items, draw),
        Value::Object(map) => change_fields(map, draw),
    }
}

fn number(old: u64, draw: &mut Stream) -> Value {
    match draw.below(8) {
        0 => old.saturating_add(1).into(),
        1 => old.saturating_sub(1).into(),
        2 => old.saturating_mul(2).into(),
        3 => (old / 2).into(),
        4 => draw.below(old.max(2)).into(),
        5 => Value::Null,
        _ => NUMBERS[draw.below(NUMBERS.len() as u64) as usize].into(),
    }
}

fn change_items(items: &mut Vec<Value>, draw: &mut Stream) {
    if items.is_empty() {
        items.push(number(0, draw));
        return;
    }
    let [one, other] = [(); 2].map(|()| draw.below(items.len() as u64) as usize);
    match draw.below(4) {
        0 => drop(items.remove(one)),
        1 => items.insert(other, items[one].clone()),
        2 => items.swap(one, other),
        _ => items[one] = items[other].clone(),
    }
}

fn change_fields(map: &mut Map<String, Value>, draw: &mut Stream) {
    let keys: Vec<String> = map.keys().cloned().collect();
    if keys.is_empty() {
        return;
    }
    let [one, other] = [(); 2].map(|()| &keys[draw.below(keys.len() as u64) as usize]);
    match draw.below(4) {
        0 => drop(map.remove(one)),
        1 => drop(map.insert(one.clone(), Value::Null)),
        _ => {
            let value = map[other].clone();
            map.insert(one.clone(), value);
        }
    }
}
