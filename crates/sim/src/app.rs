//! The model server's application: state per connection, and one counter shared by all. Its
//! answers depend on the order of requests across connections, on all bytes that a connection
//! ever sent, and on the clock. So if a replica sees another order, other bytes, or a request
//! twice, its answers differ.

/// Size of a request's header in bytes; its filler follows.
pub const REQUEST_HEADER: usize = 12;
/// Size of a reply's header in bytes; its filler follows.
pub const REPLY_HEADER: usize = 45;
/// Flag: the server ends its sending side after the reply.
pub const END: u8 = 1;

/// A client's request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub client: u8,
    pub session: u16,
    pub index: u32,
    pub filler: u16,
    /// Bytes of filler in the reply.
    pub bulk: u16,
    pub flags: u8,
}

/// The byte of a request's filler at `offset`.
pub fn filler(request: &Request, offset: usize) -> u8 {
    (offset as u8).wrapping_mul(31).wrapping_add(request.client).wrapping_add(request.index as u8)
}

impl Request {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.client];
        bytes.extend(self.session.to_le_bytes());
        bytes.extend(self.index.to_le_bytes());
        bytes.extend(self.filler.to_le_bytes());
        bytes.extend(self.bulk.to_le_bytes());
        bytes.push(self.flags);
        bytes.extend((0..usize::from(self.filler)).map(|i| filler(self, i)));
        bytes
    }

    /// The request at the start of `bytes`, once it is whole, and its length.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let header = bytes.get(..REQUEST_HEADER)?;
        let request = Self {
            client: header[0],
            session: u16::from_le_bytes([header[1], header[2]]),
            index: u32::from_le_bytes([header[3], header[4], header[5], header[6]]),
            filler: u16::from_le_bytes([header[7], header[8]]),
            bulk: u16::from_le_bytes([header[9], header[10]]),
            flags: header[11],
        };
        let len = REQUEST_HEADER + usize::from(request.filler);
        (bytes.len() >= len).then_some((request, len))
    }
}

/// A server's clock readings: the monotonic clock, and the time of day, in ns.
pub type Clocks = [i64; 2];

/// A server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Number of requests that the server has executed, including this one.
    pub counter: u64,
    pub client: u8,
    pub session: u16,
    pub index: u32,
    /// Number of requests on this connection, including this one.
    pub count: u32,
    /// Digest of all bytes that the connection ever sent.
    pub digest: u64,
    pub clocks: Clocks,
    pub bulk: u16,
}

/// The byte of a reply's filler at `offset`.
pub fn bulk(counter: u64, offset: usize) -> u8 {
    (counter as u8).wrapping_mul(7).wrapping_add(offset as u8)
}

impl Reply {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.counter.to_le_bytes().to_vec();
        bytes.push(self.client);
        bytes.extend(self.session.to_le_bytes());
        bytes.extend(self.index.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.digest.to_le_bytes());
        bytes.extend(self.clocks.iter().flat_map(|clock| clock.to_le_bytes()));
        bytes.extend(self.bulk.to_le_bytes());
        bytes.extend((0..usize::from(self.bulk)).map(|i| bulk(self.counter, i)));
        bytes
    }

    /// The reply at the start of `bytes`, once its header is there.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..REPLY_HEADER)?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or([0; 8]));
        let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap_or([0; 4]));
        Some(Self {
            counter: word(0),
            client: header[8],
            session: u16::from_le_bytes([header[9], header[10]]),
            index: half(11),
            count: half(15),
            digest: word(19),
            clocks: [27, 35].map(|at| word(at) as i64),
            bulk: u16::from_le_bytes([header[43], header[44]]),
        })
    }

    pub fn len(&self) -> usize {
        REPLY_HEADER + usize::from(self.bulk)
    }
}

/// Continues a digest (FNV-1a).
pub fn digest(so_far: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(so_far ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What the server knows about one connection.
#[derive(Clone, Debug, Default)]
pub struct PerConn {
    partial: Vec<u8>,
    count: u32,
    digest: u64,
}

/// What it knows across connections.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    pub counter: u64,
}

impl PerConn {
    /// Takes bytes that were read; true if there is a whole request now.
    pub fn read(&mut self, bytes: &[u8]) -> bool {
        self.partial.extend(bytes);
        Request::parse(&self.partial).is_some()
    }

    /// Executes the complete requests at this time; returns the output, and whether the server
    /// ends its sending side after it.
    pub fn execute(&mut self, shared: &mut Shared, clocks: Clocks) -> (Vec<u8>, bool) {
        let (mut output, mut end) = (Vec::new(), false);
        while let Some((request, len)) = Request::parse(&self.partial) {
            self.digest = digest(self.digest, &self.partial[..len]);
            self.partial.drain(..len);
            self.count += 1;
            shared.counter += 1;
            let reply = Reply {
                counter: shared.counter,
                client: request.client,
                session: request.session,
                index: request.index,
                count: self.count,
                digest: self.digest,
                clocks,
                bulk: request.bulk,
            };
            output.extend(reply.bytes());
            end |= request.flags & END != 0;
        }
        (output, end)
    }
}
