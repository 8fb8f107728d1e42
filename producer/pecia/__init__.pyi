# The public names, each with the module that has it: for type checkers, and for `pecia.__getattr__`.

from pecia.aio.client import AsyncClient as AsyncClient
from pecia.aio.job import AsyncJob as AsyncJob, AsyncJobGroup as AsyncJobGroup
from pecia.client import Client as Client
from pecia.errors import (
    AccessError as AccessError,
    BatchNotFoundError as BatchNotFoundError,
    ConfigurationError as ConfigurationError,
    DatabaseRefusedError as DatabaseRefusedError,
    DatabaseUnavailableError as DatabaseUnavailableError,
    DocumentGoneError as DocumentGoneError,
    GatewayUnavailableError as GatewayUnavailableError,
    IdempotencyConflictError as IdempotencyConflictError,
    IdentityConflictError as IdentityConflictError,
    InvalidFormatError as InvalidFormatError,
    InvalidOptionError as InvalidOptionError,
    InvalidSettingError as InvalidSettingError,
    InvalidSourceError as InvalidSourceError,
    JobCancelledError as JobCancelledError,
    JobErasedError as JobErasedError,
    JobError as JobError,
    JobExpiredError as JobExpiredError,
    JobFailedError as JobFailedError,
    JobNotFoundError as JobNotFoundError,
    JobTimeoutError as JobTimeoutError,
    PayloadStoreUnavailableError as PayloadStoreUnavailableError,
    PeciaError as PeciaError,
    QueueFullError as QueueFullError,
    RetryRefusedError as RetryRefusedError,
    StaleReviewError as StaleReviewError,
    SubmitError as SubmitError,
    SubmitManyError as SubmitManyError,
    UnavailableError as UnavailableError,
    WebhookVerificationError as WebhookVerificationError,
    WrongLoopError as WrongLoopError,
)
from pecia.formats import Format as Format
from pecia.job import Job as Job, JobGroup as JobGroup
from pecia.records import (
    AuditAction as AuditAction,
    AuditEntry as AuditEntry,
    Batch as Batch,
    Counts as Counts,
    DeadPart as DeadPart,
    Delivery as Delivery,
    DeliveryAttempt as DeliveryAttempt,
    DocumentFate as DocumentFate,
    Endpoint as Endpoint,
    Erasure as Erasure,
    Exported as Exported,
    FoundPage as FoundPage,
    Percentiles as Percentiles,
    Usage as Usage,
    UsageFigures as UsageFigures,
)
from pecia.exporting import ExportFormat as ExportFormat
from pecia.request import Submission as Submission
from pecia_schemas.blocks import (
    Block as Block,
    BlockKind as BlockKind,
    Box as Box,
    Cell as Cell,
    Doubt as Doubt,
    DoubtReason as DoubtReason,
    Grounding as Grounding,
    Line as Line,
    Mark as Mark,
    MarkKind as MarkKind,
    MarkState as MarkState,
    MergeRule as MergeRule,
    Place as Place,
    Source as Source,
    Standing as Standing,
    Table as Table,
    Witnessed as Witnessed,
    Word as Word,
)
from pecia_schemas.events import (
    JobEvent as JobEvent,
    JobNotice as JobNotice,
    NoticeType as NoticeType,
    Progress as Progress,
    Webhook as Webhook,
)
from pecia_schemas.failures import Failure as Failure, FailureCode as FailureCode
from pecia_schemas.bundled import Bundle as Bundle
from pecia_schemas.bundles import SplitAction as SplitAction, SplitChange as SplitChange
from pecia_schemas.results import (
    BundledDocument as BundledDocument,
    CachedFrom as CachedFrom,
    Captions as Captions,
    Change as Change,
    Correction as Correction,
    Document as Document,
    Page as Page,
    PageFailure as PageFailure,
    ReadingAttempt as ReadingAttempt,
    Revision as Revision,
    Segment as Segment,
    SegmentFailure as SegmentFailure,
    Shrunk as Shrunk,
    Summary as Summary,
    Verdict as Verdict,
)
from pecia_schemas.settings import ClientSettings as ClientSettings
from pecia_schemas.states import DeliveryState as DeliveryState, JobState as JobState, Lane as Lane
from pecia_schemas.tasks import (
    CaptionStyle as CaptionStyle,
    CaptionVideo as CaptionVideo,
    DocumentType as DocumentType,
    GenerationOptions as GenerationOptions,
    Prefer as Prefer,
    Preparation as Preparation,
    Preset as Preset,
    ReadBundle as ReadBundle,
    ReadDocument as ReadDocument,
    Task as Task,
    Witness as Witness,
)
