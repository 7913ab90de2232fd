//! Redis as a contender, over one blocking connection that speaks its protocol.

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use super::store::{Op, Values};
use super::{Contender, ProcessCpu, Sample, own_cpu};
use crate::output::Failure;

/// How long the server may take to listen.
const READY_BUDGET: Duration = Duration::from_secs(10);
/// Ends the server when standard input ends, which it does with this process.
const GUARD: &str = r#""$@" & server=$!; read -r _; kill "$server"; wait "$server""#;

/// A server without persistence on a free loopback port. It ends when this is dropped.
#[derive(Debug)]
pub struct RedisServer {
    guard: Child,
    input: Option<ChildStdin>,
    port: u16,
}

impl RedisServer {
    /// Starts it and waits until it listens.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not start.
    pub fn start() -> Result<Self, Failure> {
        let failed = |error| {
            Failure::new("Redis could not be started")
                .because(error)
                .remedy("redis-server on the PATH")
        };
        let found = Command::new("redis-server")
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        found.map_err(failed)?;
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(failed)?
            .port();
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "sh", "redis-server", "--bind", "127.0.0.1"])
            .args(["--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let server = Self {
            input: guard.stdin.take(),
            guard,
            port,
        };
        let end = Instant::now() + READY_BUDGET;
        while let Err(error) = TcpStream::connect(("127.0.0.1", port)) {
            if Instant::now() > end {
                return Err(failed(error));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.input.take());
        // It fails only if the guard has ended.
        let _ended = self.guard.wait();
    }
}

/// Gets or sets of one client.
#[derive(Debug)]
pub struct Redis {
    connection: Connection,
    server: ProcessCpu,
    op: Op,
    values: Values,
    batch: u64,
    keys: Vec<Vec<u8>>,
    source: Vec<u8>,
    target: Vec<u8>,
    cursor: u64,
    generation: u64,
}

impl Redis {
    /// Connects, and stores what is to be read.
    ///
    /// # Errors
    ///
    /// It does not work.
    pub fn begin(
        server: &RedisServer,
        op: Op,
        values: Values,
        batch: u64,
    ) -> Result<Self, Failure> {
        let mut connection = Connection::open(server.port)?;
        let pid = connection.server_process()?;
        connection.say(&[b"FLUSHALL"])?;
        connection.expect_ok()?;
        let mut redis = Self {
            connection,
            server: ProcessCpu::of(pid),
            op,
            batch,
            keys: (0..values.count)
                .map(|index| format!("value/{index}").into_bytes())
                .collect(),
            source: values.all(),
            target: vec![super::store::POISON; values.total() as usize],
            values,
            cursor: 0,
            generation: 0,
        };
        let mut at = 0;
        while at < redis.values.count {
            let to = redis.values.count.min(at + 16);
            redis.set(at, to)?;
            at = to;
        }
        Ok(redis)
    }

    fn set(&mut self, start: u64, end: u64) -> Result<(), Failure> {
        let size = self.values.value_bytes as usize;
        let (heads, places): (Vec<_>, Vec<_>) = (start..end)
            .map(|index| {
                let key = &self.keys[index as usize];
                let mut head = format!("*3\r\n$3\r\nSET\r\n${}\r\n", key.len()).into_bytes();
                head.extend_from_slice(key);
                head.extend_from_slice(format!("\r\n${size}\r\n").as_bytes());
                let from = self.values.id(index, self.generation) as usize * size;
                (head, from..from + size)
            })
            .unzip();
        let mut slices = Vec::with_capacity(3 * heads.len());
        for (head, place) in heads.iter().zip(places) {
            slices.push(IoSlice::new(head));
            slices.push(IoSlice::new(&self.source[place]));
            slices.push(IoSlice::new(b"\r\n"));
        }
        self.connection.write(&mut slices)?;
        for _ in start..end {
            self.connection.expect_ok()?;
        }
        Ok(())
    }

    fn get(&mut self, start: u64, end: u64) -> Result<(), Failure> {
        let mut asked = Vec::new();
        for key in &self.keys[start as usize..end as usize] {
            asked.extend_from_slice(format!("*2\r\n$3\r\nGET\r\n${}\r\n", key.len()).as_bytes());
            asked.extend_from_slice(key);
            asked.extend_from_slice(b"\r\n");
        }
        self.connection.write(&mut [IoSlice::new(&asked)])?;
        let size = self.values.value_bytes as usize;
        let place = start as usize * size..end as usize * size;
        for value in self.target[place].chunks_mut(size) {
            self.connection.value(value)?;
        }
        Ok(())
    }

    fn check(&mut self, start: u64, end: u64) -> Result<(), Failure> {
        let size = self.values.value_bytes as usize;
        for index in start..end {
            let place = index as usize * size..(index as usize + 1) * size;
            let value = &mut self.target[place];
            self.values.check(index, self.generation, value)?;
            value.fill(super::store::POISON);
        }
        Ok(())
    }
}

impl Contender for Redis {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        while sample.wall < budget {
            let from = self.cursor;
            let (cpu, server, start) = (own_cpu(), self.server.read(), Instant::now());
            let mut last = start;
            while self.cursor < self.values.count && last - start < budget - sample.wall {
                let end = self.values.count.min(self.cursor + self.batch);
                match self.op {
                    Op::Get => self.get(self.cursor, end)?,
                    Op::Put => self.set(self.cursor, end)?,
                }
                self.cursor = end;
                let now = Instant::now();
                sample.latency.record(now - last);
                last = now;
            }
            sample.wall += last - start;
            sample.cpu += own_cpu() - cpu;
            sample.cpu += self.server.read().saturating_sub(server);
            sample.operations += self.cursor - from;
            if self.op == Op::Put {
                let mut at = from;
                while at < self.cursor {
                    let to = self.cursor.min(at + 16);
                    self.get(at, to)?;
                    at = to;
                }
            }
            self.check(from, self.cursor)?;
            if self.cursor == self.values.count {
                self.cursor = 0;
                self.generation += u64::from(self.op == Op::Put);
            }
        }
        sample.bytes = sample.operations * self.values.value_bytes;
        Ok(sample)
    }
}

/// A connection that speaks RESP.
#[derive(Debug)]
struct Connection {
    input: BufReader<TcpStream>,
    output: TcpStream,
    line: Vec<u8>,
}

impl Connection {
    fn open(port: u16) -> Result<Self, Failure> {
        let output = TcpStream::connect(("127.0.0.1", port)).map_err(broken)?;
        output.set_nodelay(true).map_err(broken)?;
        let input = output.try_clone().map_err(broken)?;
        Ok(Self {
            // Longer pieces are read past it.
            input: BufReader::with_capacity(16 << 10, input),
            output,
            line: Vec::new(),
        })
    }

    fn say(&mut self, words: &[&[u8]]) -> Result<(), Failure> {
        let mut text = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            text.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            text.extend_from_slice(word);
            text.extend_from_slice(b"\r\n");
        }
        self.write(&mut [IoSlice::new(&text)])
    }

    fn write(&mut self, mut slices: &mut [IoSlice<'_>]) -> Result<(), Failure> {
        while !slices.is_empty() {
            let written = self.output.write_vectored(slices).map_err(broken)?;
            if written == 0 {
                return Err(broken(io::ErrorKind::WriteZero.into()));
            }
            IoSlice::advance_slices(&mut slices, written);
        }
        Ok(())
    }

    fn line(&mut self) -> Result<&str, Failure> {
        self.line.clear();
        self.input
            .read_until(b'\n', &mut self.line)
            .map_err(broken)?;
        let text = str::from_utf8(&self.line).unwrap_or_default();
        match text.strip_suffix("\r\n") {
            Some(text) => Ok(text),
            None => Err(Failure::new("Redis has ended, or says what is no line")),
        }
    }

    fn expect_ok(&mut self) -> Result<(), Failure> {
        match self.line()? {
            "+OK" => Ok(()),
            other => Err(Failure::new(format!("Redis says {other:?}"))),
        }
    }

    /// Reads a value that fills `into`.
    fn value(&mut self, into: &mut [u8]) -> Result<(), Failure> {
        let length = self.length()?;
        if length != into.len() {
            let wanted = into.len();
            return Err(Failure::new(format!(
                "Redis has a value of {length} bytes, not {wanted}"
            )));
        }
        self.payload(into)
    }

    fn length(&mut self) -> Result<usize, Failure> {
        let line = self.line()?;
        let length = line
            .strip_prefix('$')
            .and_then(|length| length.parse().ok());
        length.ok_or_else(|| Failure::new(format!("Redis has no value and says {line:?}")))
    }

    fn server_process(&mut self) -> Result<u32, Failure> {
        self.say(&[b"INFO", b"server"])?;
        let mut text = vec![0; self.length()?];
        self.payload(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines();
        let id = lines.find_map(|line| line.strip_prefix("process_id:")?.parse().ok());
        id.ok_or_else(|| Failure::new("Redis does not say which process it is"))
    }

    fn payload(&mut self, into: &mut [u8]) -> Result<(), Failure> {
        self.input.read_exact(into).map_err(broken)?;
        self.input.read_exact(&mut [0; 2]).map_err(broken)
    }
}

fn broken(error: io::Error) -> Failure {
    Failure::new("the connection to Redis broke").because(error)
}
