//! Values: bytes as they are, text in the client's encoding, any other object as its text. With a serde, the client's
//! serde converts the object, and returns flags by which it can convert it back.

use crate::failure::Failure;
use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PyString, PyTuple};

/// serde.py: text
const FLAG_TEXT: u32 = 16;
/// serde.py: the flags of values that are anything but bytes
const FLAGS_CONVERTED: u32 = FLAG_TEXT | 1 | 2 | 4;

/// How a client converts values.
pub(crate) struct Values {
    /// object with `serialize(key, value)` and `deserialize(key, value, flags)`
    pub(crate) serde: Option<Py<PyAny>>,
    /// whether it is this package's own `PickleSerde`, whose rules for values that are not pickles are known here
    is_own_serde: bool,
    /// function, used without a serde
    pub(crate) serializer: Option<Py<PyAny>>,
    /// function, used without a serde
    pub(crate) deserializer: Option<Py<PyAny>>,
    /// encoding of text
    pub(crate) encoding: String,
}

/// A value as the region has it.
pub(crate) struct Value<'py> {
    pub(crate) bytes: Bound<'py, PyBytes>,
    pub(crate) flags: u32,
}

impl Values {
    pub(crate) fn new(
        py: Python<'_>,
        serde: Option<Py<PyAny>>,
        serializer: Option<Py<PyAny>>,
        deserializer: Option<Py<PyAny>>,
        encoding: &str,
    ) -> Self {
        Self {
            is_own_serde: is_own_serde(serde.as_ref(), py),
            serde,
            serializer,
            deserializer,
            encoding: encoding.to_owned(),
        }
    }

    /// What to store for `value`. Flags of the caller take precedence over those of the serde.
    pub(crate) fn encode<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> Result<Value<'py>, Failure> {
        let py = key.py();
        let serialized = match (&self.serde, &self.serializer) {
            (Some(serde), _) => Some(serde.bind(py).call_method1(intern!(py, "serialize"), (key, value))?),
            (None, Some(serializer)) => Some(serializer.bind(py).call1((key, value))?),
            (None, None) => None,
        };
        let (data, own_flags) = match serialized {
            None => (value.clone(), None),
            Some(pair) => {
                let pair = pair.cast_into::<PyTuple>().map_err(PyErr::from)?;
                (pair.get_item(0)?, Some(pair.get_item(1)?))
            }
        };
        let flags = match flags.or(own_flags.as_ref()) {
            None => 0,
            Some(flags) => low_bits(flags)?,
        };
        let bytes = match data.cast_into::<PyBytes>() {
            Ok(bytes) => bytes,
            Err(other) => self.bytes_of(&other.into_inner())?,
        };
        Ok(Value { bytes, flags })
    }

    /// The bytes of an object that is not a bytes object.
    fn bytes_of<'py>(&self, data: &Bound<'py, PyAny>) -> Result<Bound<'py, PyBytes>, Failure> {
        let py = data.py();
        if data.is_instance_of::<PyByteArray>() || data.is_instance_of::<PyMemoryView>() {
            let bytes = py.get_type::<PyBytes>().call1((data,))?;
            return Ok(bytes.cast_into::<PyBytes>().map_err(PyErr::from)?);
        }
        let text = data.str()?;
        if self.encoding == "ascii" {
            let known = text.to_str().ok().filter(|text| text.is_ascii());
            if let Some(text) = known {
                return Ok(PyBytes::new(py, text.as_bytes()));
            }
        }
        self.encoded(&text)
    }

    fn encoded<'py>(&self, text: &Bound<'py, PyString>) -> Result<Bound<'py, PyBytes>, Failure> {
        let py = text.py();
        match text.call_method1(intern!(py, "encode"), (&self.encoding,)) {
            Ok(bytes) => Ok(bytes.cast_into::<PyBytes>().map_err(PyErr::from)?),
            Err(error) if error.is_instance_of::<PyUnicodeEncodeError>(py) => Err(Failure::illegal(format!(
                "the value is text that {} cannot encode ({error}): encode it, or use a serde",
                self.encoding
            ))),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether what is stored comes back as an object that is equal to it, of the same type.
    pub fn keeps_objects(&self) -> bool {
        self.is_own_serde
    }

    /// The object that was stored, from its value's bytes. `key` makes the object that a serde gets for the key; it is called
    /// only if a serde wants it.
    #[inline]
    pub(crate) fn decode<'py>(
        &self,
        bytes: Bound<'py, PyBytes>,
        flags: u32,
        key: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = bytes.py();
        if self.is_own_serde && flags & !FLAG_TEXT & FLAGS_CONVERTED == 0 {
            return match flags & FLAG_TEXT {
                0 => Ok(bytes.into_any()),
                _ => Ok(PyString::from_encoded_object(&bytes, Some(c"utf-8"), None)?.into_any()),
            };
        }
        if self.serde.is_none() && self.deserializer.is_none() {
            return Ok(bytes.into_any());
        }
        let key = key()?;
        match (&self.serde, &self.deserializer) {
            (Some(serde), _) => serde.bind(py).call_method1(intern!(py, "deserialize"), (key, bytes, flags)),
            (None, Some(deserializer)) => deserializer.bind(py).call1((key, bytes, flags)),
            (None, None) => Ok(bytes.into_any()),
        }
    }
}

/// Whether it is an object of this package's `PickleSerde` itself, not of a class that is derived from it.
fn is_own_serde(serde: Option<&Py<PyAny>>, py: Python<'_>) -> bool {
    let own = || {
        py.import(intern!(py, "keyway_cache.serde"))?
            .getattr(intern!(py, "PickleSerde"))
    };
    serde.is_some_and(|serde| own().is_ok_and(|own| serde.bind(py).get_type().is(&own)))
}

/// Client flags. A server keeps the low 32 bits of larger numbers, and so does this.
fn low_bits(flags: &Bound<'_, PyAny>) -> Result<u32, Failure> {
    let number = flags.extract::<u64>().ok();
    let low = number.and_then(|number| u32::try_from(number & u64::from(u32::MAX)).ok());
    low.ok_or_else(|| Failure::client(format!("flags are a number from 0 on, not {flags:?}")))
}
